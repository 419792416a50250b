"""What one pool's tables are made of: the routers, their judgement, and the studies beside them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, final

from prefill_router.brief import brief
from prefill_router.data import RoutingDataset, Split
from prefill_router.errors import ConfigError
from prefill_router.reports.compare import Judged, Result
from prefill_router.reports.reproduce.pools import Found

TRUNK = "SharedTrunkNet"
UNIFIED = "Unified Multitask"
SYSTEMS: Mapping[str, str] = {
    TRUNK: "SharedTrunkNet",
    UNIFIED: "Unified Multitask",
    "Matrix Factorization": "Matrix Factorisation",
    "Per-Model Multitask": "Per-Target Multitask",
    "GraphRouter": "GraphRouter",
    "kNN": "kNN majority",
}
"""The six routers of the paper's tables, and what they are called in the packaged list."""
SEMANTIC = tuple(name for name in SYSTEMS if name != TRUNK)
"""The semantic baselines among them."""


@final
@dataclass(frozen=True, kw_only=True)
class Options:
    """How much work is put in.

    Attributes:
        seed: Of the split, the training and the resamples.
        seeds: Training seeds of the seed study; the paper has 10.
        resamples: Bootstrap resamples.
        dim: PCA components of the probes in the sweeps and the ablation.
        quick: A rehearsal: every network is trained for a few epochs only.
    """

    seed: int = 0
    seeds: int = 5
    resamples: int = 1000
    dim: int = 100
    quick: bool = False

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise ConfigError(f"{self.seeds} seeds; a spread needs at least 2, the paper has 10")
        if self.resamples < 0 or self.dim < 1:
            raise ConfigError(
                f"{self.resamples} resamples and {self.dim} components; give 0 or more, 1 or more"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


@brief
@final
@dataclass(frozen=True, eq=False)
class Run:
    """One pool, worked through.

    Attributes:
        found: The pool.
        drawn: Its split.
        result: Every router, fitted and judged on the test part.
        parts: What the studies came to, plain values by the study's name; `{"missing": why}` where
            one can't be done on these data.
        options: How much work was put in.
    """

    found: Found
    drawn: Split
    result: Result
    parts: Mapping[str, Mapping[str, Any]]
    options: Options

    @property
    def pool(self) -> str:
        """The paper's pool whose numbers stand beside ours."""
        return self.found.pool

    @property
    def title(self) -> str:
        """What the tables call it."""
        return self.found.title

    @property
    def test(self) -> RoutingDataset:
        """The test part."""
        return self.found.dataset.select(self.drawn["test"])

    def system(self, name: str) -> Judged | None:
        """A router by the paper's name; None where it couldn't be fitted."""
        return self.result.by_name.get(SYSTEMS.get(name, name))

    def why_not(self, name: str) -> str:
        """Why a router isn't there."""
        wanted = SYSTEMS.get(name, name)
        failed = [one.why for one in self.result.failed if one.name == wanted]
        return failed[0] if failed else "it isn't among the routers"

    def missing(self, part: str) -> str:
        """Why a study is missing; empty where it isn't."""
        if part not in self.parts:
            return "it wasn't done"
        return str(self.parts[part].get("missing", ""))
