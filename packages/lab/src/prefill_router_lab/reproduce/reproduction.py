"""Processes every pool: fits the routers, judges them, and runs the studies.

The studies that the paper's tables need besides the routers; each returns plain values.

These are the encoder sweep and the layer ablation; seeds, shifts and routing ratios of the six
routers; and total cost and latency, encoder included. A part is made once and kept as a file, so
that interrupted work can resume. A part that can't be made on the data gives the reason.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from prefill_router import __version__, files
from prefill_router.activations import Activations
from prefill_router.comparison import Charge, ComparisonPlan, count_tokens, digest_prices, run_plan
from prefill_router.data import WITH_CALIBRATION, RoutingDataset, binary, split
from prefill_router.engines import Engine
from prefill_router.errors import ConfigError, DataError, MissingExtraError, PrefillRouterError
from prefill_router.evaluation import Trial, plain
from prefill_router.files import default_cache
from prefill_router.fitting import Recipe, gather
from prefill_router.progress import Progress, SilentProgress
from prefill_router.router import EncoderSources, Router
from prefill_router.short_repr import short_repr
from prefill_router_lab.depth import SweepOptions, sweep
from prefill_router_lab.end_to_end import (
    Contender,
    EndToEndOptions,
    Latency,
    Speed,
    answer_seconds,
    study_end_to_end,
    time_routing,
)
from prefill_router_lab.reproduce.options import QWEN_PRICE, ReproduceOptions
from prefill_router_lab.reproduce.systems import (
    SYSTEMS,
    TRUNK,
    UNIFIED,
    Bench,
    PaperPool,
    PoolContext,
    PoolRun,
    find_pools,
    make_recipes,
    single_networks,
    without_calibration,
)
from prefill_router_lab.studies import (
    AblationOptions,
    RatioOptions,
    SeedOptions,
    Shift,
    ShiftOptions,
    ablation_study,
    find_strongest,
    routing_ratio,
    seed_study,
    shift_study,
)

__all__ = ["PARTS", "PoolContext", "make_parts"]


_Z = 1.959964
"""The normal distribution's 97.5th percentile."""


def sweep_part(context: PoolContext) -> dict[str, Any]:
    """The test AUC of every target with every encoder, with intervals."""
    result = sweep(
        context.stores,
        context.train,
        context.test,
        SweepOptions(dim=context.options.dim, seed=context.options.seed),
        progress=context.progress,
    )
    labels = binary(context.test.correct)
    right = (labels == 1).sum(axis=0).tolist()
    wrong = (labels == 0).sum(axis=0).tolist()
    return {
        "encoders": [
            {
                "encoder": encoder,
                "mean": plain(float(result.mean()[e])),
                "sites": {t: s.name for t, s in zip(result.targets, result.sites[e], strict=True)},
                "auc": {
                    target: with_interval(float(result.auc[e, k]), right[k], wrong[k])
                    for k, target in enumerate(result.targets)
                },
            }
            for e, encoder in enumerate(result.encoders)
        ]
    }


def with_interval(auc: float, right: int, wrong: int) -> dict[str, float | None]:
    """An AUC with its 95 % interval.

    Hanley and McNeil, "The meaning and use of the area under a ROC curve", Radiology 143, 1982:
    the standard error follows from the AUC and the sizes of both classes. It assumes a distribution
    of the scores, so the coverage of 95 % is approximate.

    Args:
        auc: The AUC; NaN where it isn't defined.
        right: Number of queries answered correctly.
        wrong: Number of queries answered wrongly.
    """
    if math.isnan(auc) or not right or not wrong:
        return {"value": plain(auc), "lower": None, "upper": None}
    both_right, both_wrong = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = (
        auc * (1 - auc) + (right - 1) * (both_right - auc**2) + (wrong - 1) * (both_wrong - auc**2)
    ) / (right * wrong)
    half = _Z * math.sqrt(max(variance, 0.0))
    return {"value": auc, "lower": max(0.0, auc - half), "upper": min(1.0, auc + half)}


def ablation_part(context: PoolContext) -> dict[str, Any]:
    """The methods of selecting a layer, for every encoder."""
    study = ablation_study(
        {"": context.train},
        context.stores,
        AblationOptions(dim=context.options.dim, seed=context.options.seed),
        engine=context.engine,
        progress=context.progress,
    )
    return {
        "encoders": [
            {"encoder": row.encoder, **row.ways.to_dict(), "auc": row.auc} for row in study.rows
        ]
    }


_STEM = "mmlu-pro-stem"
_HLE = re.compile(r"(hle|humanity'?s?[-_ ]?last[-_ ]?exam)", re.IGNORECASE)


def seeds_part(context: PoolContext) -> dict[str, Any]:
    """Every router with several training seeds."""
    return seed_study(
        context.paper_pool.dataset,
        single_networks(context.recipes),
        context.states,
        context.split,
        SeedOptions(count=context.options.seed_count, seed=context.options.seed),
        calibrated=context.calibrated,
        folder=context.place("seeds"),
        engine=context.engine,
        progress=context.progress,
    ).to_dict()


def domains_part(context: PoolContext) -> dict[str, Any]:
    """Trained on MMLU-Pro's STEM, tested on its humanities and social sciences."""
    shift = Shift.preset(_STEM)
    domains = {query.domain for query in context.paper_pool.dataset.queries}
    lacking = [name for name in (*shift.train_on, *shift.test_on) if name not in domains]
    if lacking:
        raise DataError(
            "the data don't have MMLU-Pro's subjects: no query has the domains "
            f"{', '.join(lacking)}"
        )
    return _study_shift(context, shift, "domains")


def benchmark_part(context: PoolContext) -> dict[str, Any]:
    """Humanity's Last Exam held out."""
    benchmarks = sorted({query.benchmark for query in context.paper_pool.dataset.queries} - {""})
    held_out = [name for name in benchmarks if _HLE.search(name)]
    if not held_out:
        raise DataError(
            "the data have no question of Humanity's Last Exam; their benchmarks are "
            f"{', '.join(benchmarks[:20]) or 'not named'}"
        )
    return _study_shift(context, Shift.hold_out(context.paper_pool.dataset, held_out), "benchmark")


def ratio_part(context: PoolContext) -> dict[str, Any]:
    """Accuracy over the share of queries that is sent to the strong target."""
    fits = context.result.by_name
    systems = {
        paper: fits[name].fit.router.predict(context.test, stores=context.states)
        for paper, name in SYSTEMS.items()
        if name in fits
    }
    study = routing_ratio(
        systems,
        context.test,
        RatioOptions(resamples=context.options.resample_count, seed=context.options.seed),
        strong=find_strongest(context.test),
        progress=context.progress,
    )
    curves = {
        curve.name: {
            "ratio": _thin_curve(curve.ratio),
            "accuracy": _thin_curve(curve.accuracy),
        }
        for curve in study.curves
    }
    return {**study.to_dict(), "curves": curves}


def _study_shift(context: PoolContext, shift: Shift, name: str) -> dict[str, Any]:
    return shift_study(
        context.paper_pool.dataset,
        without_calibration(single_networks(context.recipes)),
        context.states,
        context.split,
        shift,
        ShiftOptions(resamples=context.options.resample_count, seed=context.options.seed),
        folder=context.place(f"shift_{name}"),
        engine=context.engine,
        progress=context.progress,
    ).to_dict()


def _thin_curve(values: np.ndarray) -> list[float | None]:
    """At most a few hundred points of a curve, including both ends."""
    places = np.unique(np.linspace(0, len(values) - 1, 301).round().astype(np.int64))
    return [float(v) if np.isfinite(v) else None for v in values[places]]


_TIMED = 20
"""Number of prompts whose decisions are timed."""


def end_to_end_part(context: PoolContext) -> dict[str, Any]:
    """SharedTrunkNet with its encoder charged, compared with Unified Multitask without charge."""
    fits = context.result.by_name
    if SYSTEMS[UNIFIED] not in fits:
        raise DataError("the semantic router couldn't be fitted")
    notes: list[str] = []
    routers = {name: fits[SYSTEMS[name]].fit.router for name in (TRUNK, UNIFIED)}
    latencies = _measure_latencies(context, routers, notes)
    contenders = [
        _make_contender(context, router, name, latencies.get(name))
        for name, router in routers.items()
    ]
    study = study_end_to_end(
        contenders,
        find_strongest(context.train),
        EndToEndOptions(resamples=context.options.resample_count, seed=context.options.seed),
        charges={TRUNK: context.charge.words, UNIFIED: "nothing"},
        progress=context.progress,
    )
    return {**study.to_dict(), "notes": notes}


def _make_contender(
    context: PoolContext, router: Router, name: str, latency: Latency | None
) -> Contender:
    test = context.test
    trial = Trial.join(router.predict(test, stores=context.states), test, policy=router.policy)
    cost = np.zeros(len(test))
    if name == TRUNK:
        tokens = count_tokens(
            router, test, stores=context.states, cache=default_cache(), progress=context.progress
        )
        cost = context.charge.dollars(tokens, None if latency is None else latency.mean)
    return Contender(name, trial, answer_seconds(test, context.speeds), cost, latency)


def _measure_latencies(
    context: PoolContext, routers: Mapping[str, Router], notes: list[str]
) -> dict[str, Latency]:
    """The latencies of the routers that can decide on this machine, timed in turns."""
    prompts = [query.prompt for query in context.test.queries[:_TIMED]]
    routes = {}
    for name, router in routers.items():
        placed = replace(router, sources=context.sources)
        try:
            placed.route(prompts[0])
        except (ConfigError, MissingExtraError) as error:
            notes.append(f"{name} couldn't be timed: {error}")
        else:
            routes[name] = placed.route
    return time_routing(routes, prompts, progress=context.progress) if routes else {}


PARTS: Final[Mapping[str, Callable[[PoolContext], dict[str, Any]]]] = {
    "sweep": sweep_part,
    "ablation": ablation_part,
    "ratio": ratio_part,
    "end_to_end": end_to_end_part,
    "shift_domains": domains_part,
    "shift_benchmark": benchmark_part,
    "seeds": seeds_part,
}
"""The parts by name, the fast ones first."""


def make_parts(
    context: PoolContext, folder: Path | None, *, only: Collection[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Every part of a pool; `{"missing": why}` where one can't be made.

    Args:
        context: The pool with its fitted routers.
        folder: Keeps each part once it is made, and reuses kept parts of the same routers, data,
            split and options. Nothing is kept if not given.
        only: The parts to make; all if not given.
    """
    digest, parts = _digest_inputs(context), {}
    makers = {name: make for name, make in PARTS.items() if only is None or name in only}
    with context.progress.task("studies", total=float(len(makers))) as advance:
        for name, make in makers.items():
            place = None if folder is None else folder / f"{name}.json"
            value = None if place is None else _load_part(place, digest)
            if value is None:
                value = _make_part(make, context)
                if place is not None and "missing" not in value:  # may be available next time
                    files.write_json(place, {"of": digest, "value": value})
            parts[name] = value
            advance(note=name)
    return parts


def _make_part(
    make: Callable[[PoolContext], dict[str, Any]], context: PoolContext
) -> dict[str, Any]:
    try:
        return make(context)
    except PrefillRouterError as error:
        return {"missing": str(error)}


def _digest_inputs(context: PoolContext) -> str:
    inputs = {
        "package": __version__,
        "data": context.paper_pool.dataset.fingerprint,
        "prices": digest_prices(context.paper_pool.dataset),
        "split": context.split.to_dict(),
        "options": context.options.to_dict(),
        "encoders": list(context.encoders),
        "states": sorted(str(store.provenance) for store in context.states),
        "recipes": {name: recipe.to_dict() for name, recipe in context.recipes.items()},
        "charge": context.charge.words,
        "speeds": {name: vars(speed) for name, speed in sorted(context.speeds.items())},
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def _load_part(place: Path, digest: str) -> dict[str, Any] | None:
    try:
        value = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("of") != digest:
        return None
    content = value.get("value")
    return content if isinstance(content, dict) else None


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
            "charge": self.charge.words,
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
    bar = progress or SilentProgress()
    recipes = make_recipes(
        means.encoders,
        means.embedding,
        options,
        text_network=means.text_network,
        soft_labels=means.soft_labels,
    )
    needs = tuple(dict.fromkeys(need for recipe in recipes.values() for need in recipe.needs))
    states = gather(needs, dataset, stores, sources=means.sources, cache=means.cache, progress=bar)
    runs = []
    for paper_pool in find_pools(bench, with_input_tokens(dataset, states)):
        place = None if folder is None else folder / paper_pool.pool
        context = _fit_pool(paper_pool, recipes, states, options, means, place, engine, bar)
        parts = make_parts(context, None if place is None else place / "studies", only=studies)
        runs.append(PoolRun(paper_pool, context.split, context.result, parts, options))
    return runs


def with_input_tokens(dataset: RoutingDataset, states: Sequence[Activations]) -> RoutingDataset:
    """The dataset, with missing input token counts taken from the first encoder's prompts.

    NVIDIA's table has output tokens only, and costs need the input tokens too.

    Args:
        dataset: Scored answers.
        states: States of its queries.
    """
    is_known = ~np.isnan(dataset.input_tokens)
    if is_known.any() or not np.isnan(dataset.recorded_cost).all() or not states:
        return dataset
    counts = np.asarray(states[0].tokens(dataset.prompt_keys), dtype=np.float64)
    tokens = np.where(np.isnan(dataset.output_tokens), np.nan, counts[:, None])
    return replace(dataset, input_tokens=tokens)


def _fit_pool(
    paper_pool: PaperPool,
    recipes: Mapping[str, Recipe],
    states: Sequence[Activations],
    options: ReproduceOptions,
    means: ReproduceMeans,
    folder: Path | None,
    engine: Engine | None,
    progress: Progress,
) -> PoolContext:
    plain_split = split(paper_pool.dataset, seed=options.seed)
    calibrated_split = split(paper_pool.dataset, seed=options.seed, fractions=WITH_CALIBRATION)
    plan = ComparisonPlan(
        recipes, SYSTEMS[TRUNK], plain_split, options.resample_count, options.seed, calibrated_split
    )
    place = None if folder is None else folder / "routers"
    return PoolContext(
        paper_pool=paper_pool,
        split=plain_split,
        calibrated=calibrated_split,
        states=states,
        encoders=means.encoders,
        recipes=recipes,
        result=run_plan(
            plan, paper_pool.dataset, states, folder=place, engine=engine, progress=progress
        ),
        options=options,
        folder=folder,
        sources=means.sources,
        charge=means.charge,
        speeds=means.speeds,
        engine=engine,
        progress=progress,
    )
