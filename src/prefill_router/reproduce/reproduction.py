"""Processes every pool: fits the routers, judges them, and runs the studies."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from prefill_router.activations import Activations
from prefill_router.data import WITH_CALIBRATION, RoutingDataset, split
from prefill_router.engines import Engine
from prefill_router.fitting import Recipe, gather
from prefill_router.progress import Progress, SilentProgress
from prefill_router.reproduce.parts import make_parts
from prefill_router.reproduce.pools import Bench, PaperPool, find_pools
from prefill_router.reproduce.systems import (
    QWEN_PRICE,
    SYSTEMS,
    TRUNK,
    PoolContext,
    PoolRun,
    ReproduceOptions,
    routers,
)
from prefill_router.router import EncoderSources
from prefill_router.short_repr import short_repr
from prefill_router.studies.comparison import ComparisonPlan, run_plan
from prefill_router.studies.end_to_end import Charge, Speed


@short_repr
@final
@dataclass(frozen=True, eq=False, kw_only=True)
class ReproduceMeans:
    """Encoders, prices and other inputs of a reproduction.

    Attributes:
        encoders: The encoders whose hidden states are read; the sweeps compare all of them.
        embedding: The model for the embeddings of the semantic routers.
        sources: Where encoders are found.
        charge: The price of the encoder.
        speeds: The speeds of the targets, by target.
        text_network: The text model to fine-tune, a hub id or a folder; None for no such router.
        soft_labels: A judge's scores; None for no router trained on them.
        cache: Keeps newly encoded states; the user's cache if not given.
    """

    encoders: tuple[str, ...] = ("minilm",)
    embedding: str = "minilm"
    sources: EncoderSources = field(default_factory=EncoderSources)
    charge: Charge = field(default_factory=lambda: Charge(per_million_tokens=QWEN_PRICE))
    speeds: Mapping[str, Speed] = field(default_factory=dict)
    text_network: str | None = None
    soft_labels: Path | None = None
    cache: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "encoders": list(self.encoders),
            "embedding": self.embedding,
            "text_network": self.text_network,
            "soft_labels": None if self.soft_labels is None else str(self.soft_labels),
            "charge": self.charge.said,
            "speeds": {name: vars(speed) for name, speed in self.speeds.items()},
        }


def reproduce(
    bench: Bench,
    dataset: RoutingDataset,
    stores: Sequence[Activations] = (),
    *,
    options: ReproduceOptions | None = None,
    means: ReproduceMeans | None = None,
    studies: Collection[str] | None = None,
    folder: Path | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> list[PoolRun]:
    """Reproduce every pool of the paper that is in the data.

    Args:
        bench: The source of the data.
        dataset: Scored answers.
        stores: States of its queries; missing states are encoded now.
        options: The extent of the work.
        means: Encoders, prices and other inputs.
        studies: Names in `PARTS`; all of them if not given.
        folder: Keeps fitted routers and results, so that interrupted work can resume.
        engine: Where the fits run; in this process if not given.
        progress: Reports the progress of the work.

    Raises:
        DataError: There is too little data.
        FitError: The prefill router itself can't be fitted.
        ConfigError: An encoder isn't found.
    """
    options, means = options or ReproduceOptions(), means or ReproduceMeans()
    shown = progress or SilentProgress()
    recipes = routers(
        means.encoders,
        means.embedding,
        options,
        text_network=means.text_network,
        soft_labels=means.soft_labels,
    )
    needs = tuple(dict.fromkeys(need for recipe in recipes.values() for need in recipe.needs))
    states = gather(
        needs, dataset, stores, sources=means.sources, cache=means.cache, progress=shown
    )
    runs = []
    for found in find_pools(bench, with_input_tokens(dataset, states)):
        place = None if folder is None else folder / found.pool
        scene = _fitted(found, recipes, states, options, means, place, engine, shown)
        parts = make_parts(scene, None if place is None else place / "studies", only=studies)
        runs.append(PoolRun(found, scene.drawn, scene.result, parts, options))
    return runs


def with_input_tokens(dataset: RoutingDataset, states: Sequence[Activations]) -> RoutingDataset:
    """The dataset, with missing input token counts taken from the first encoder's prompts.

    NVIDIA's table has output tokens only, and costs need the input tokens too.

    Args:
        dataset: Scored answers.
        states: States of its queries.
    """
    known = ~np.isnan(dataset.input_tokens)
    if known.any() or not np.isnan(dataset.recorded_cost).all() or not states:
        return dataset
    counts = np.asarray(states[0].tokens(dataset.prompt_keys), dtype=np.float64)
    told = np.where(np.isnan(dataset.output_tokens), np.nan, counts[:, None])
    return replace(dataset, input_tokens=told)


def _fitted(
    found: PaperPool,
    recipes: Mapping[str, Recipe],
    states: Sequence[Activations],
    options: ReproduceOptions,
    means: ReproduceMeans,
    folder: Path | None,
    engine: Engine | None,
    progress: Progress,
) -> PoolContext:
    drawn = split(found.dataset, seed=options.seed)
    calibrated = split(found.dataset, seed=options.seed, fractions=WITH_CALIBRATION)
    plan = ComparisonPlan(
        recipes, SYSTEMS[TRUNK], drawn, options.resamples, options.seed, calibrated
    )
    place = None if folder is None else folder / "routers"
    return PoolContext(
        found=found,
        drawn=drawn,
        calibrated=calibrated,
        states=states,
        encoders=means.encoders,
        recipes=recipes,
        result=run_plan(
            plan, found.dataset, states, folder=place, engine=engine, progress=progress
        ),
        options=options,
        folder=folder,
        sources=means.sources,
        charge=means.charge,
        speeds=means.speeds,
        engine=engine,
        progress=progress,
    )
