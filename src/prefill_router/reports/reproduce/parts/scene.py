"""What a part is made from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset, Split
from prefill_router.fitting import Recipe
from prefill_router.progress import Progress, SilentProgress
from prefill_router.reports.compare import Result
from prefill_router.reports.reproduce.pools import Found
from prefill_router.reports.reproduce.run import Options
from prefill_router.router import EncoderSources
from prefill_router.studies.end_to_end import Charge, Speed

QWEN_PRICE = 0.1625
"""US dollars per million input tokens of the paper's encoder, Qwen3.5-35B-A3B (its appendix I)."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Scene:
    """One pool, its routers fitted.

    Attributes:
        found: The pool.
        drawn: Its split, 85/15.
        calibrated: The split of the calibrated routers, 75/10/15 with the same test part.
        states: The states of its queries.
        encoders: Names of the encoders that the sweeps are about.
        recipes: Every router's recipe.
        result: The routers, judged.
        options: How much work is put in.
        folder: Keeps the routers that are fitted on the way; None keeps nothing.
        sources: Where encoders are found, for timing them.
        charge: What the encoder costs.
        speeds: How fast the targets answer, by target.
        progress: Shows how far it is.
    """

    found: Found
    drawn: Split
    calibrated: Split
    states: Sequence[Activations]
    encoders: Sequence[str]
    recipes: Mapping[str, Recipe]
    result: Result
    options: Options
    folder: Path | None = None
    sources: EncoderSources = field(default_factory=EncoderSources)
    charge: Charge = field(default_factory=lambda: Charge(per_million_tokens=QWEN_PRICE))
    speeds: Mapping[str, Speed] = field(default_factory=dict)
    progress: Progress = field(default_factory=SilentProgress)

    @property
    def train(self) -> RoutingDataset:
        """The train part."""
        return self.found.dataset.select(self.drawn["train"])

    @property
    def test(self) -> RoutingDataset:
        """The test part."""
        return self.found.dataset.select(self.drawn["test"])

    @property
    def stores(self) -> list[Activations]:
        """The states that the sweeps read, one store per encoder."""
        first: dict[str, Activations] = {}
        for store in self.states:
            first.setdefault(store.provenance.encoder, store)
        return [first[name] for name in self.encoders if name in first]

    def place(self, name: str) -> Path | None:
        """The folder that keeps a study's routers."""
        return None if self.folder is None else self.folder / name
