"""Fits a router: from a dataset and finished stores of states to something that routes.

Everything fitted comes from the train part: the sites, the reducers, the trunk, the costs. The test
part is opened once, at the end, for the numbers on the card.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, final

import numpy as np

from prefill_router import __version__
from prefill_router.activations import POOLINGS, Activations, Pooling, Site
from prefill_router.cost import CostEstimator
from prefill_router.data import RoutingDataset, Split, split
from prefill_router.errors import ConfigError, FitError
from prefill_router.evaluation import Evaluation, evaluate
from prefill_router.features import FeatureExtractor, Mode
from prefill_router.layers import Method, Pinned, Scope
from prefill_router.predictors import TrunkConfig, TrunkFit, fit_trunk
from prefill_router.progress import Progress, SilentProgress
from prefill_router.router import Interval, Record, Router, TrainedOn


@final
@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """Options of a fit.

    Attributes:
        mode: `single`, `per_model` or `auto`: which encoder serves which target.
        method: How a site is chosen: `fisher`, `grid` or `pinned`.
        scope: Whether each target has a site of its own, or the pool has one for all.
        dim: Components of each block, unless the grid search chooses.
        poolings: Candidates.
        all_layers: Whether layers below ceil(L/2) are candidates too.
        pinned: The site, or that of each target by its name, for `pinned`.
        assignments: For `per_model`: the name of each target's encoder.
        trunk: Options of the training.
        assumed_output_tokens: Stands in for targets of which no output count is known.
        resamples: Bootstrap resamples for the card's intervals.
        seed: Of the split, where none is given.
    """

    mode: Mode = "single"
    method: Method = "fisher"
    scope: Scope = "target"
    dim: int = 100
    poolings: Sequence[Pooling] = POOLINGS
    all_layers: bool = False
    pinned: Pinned | None = None
    assignments: Mapping[str, str] = field(default_factory=dict)
    trunk: TrunkConfig = field(default_factory=TrunkConfig)
    assumed_output_tokens: float | None = None
    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        assumed = self.assumed_output_tokens
        if assumed is not None and not (math.isfinite(assumed) and assumed >= 0):
            raise ConfigError(
                f"the assumed output tokens are {assumed}; they must be a number, not negative"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the record."""
        special = {
            "poolings": list(self.poolings),
            "pinned": _plain(self.pinned),
            "assignments": dict(self.assignments),
            "trunk": self.trunk.to_dict(),
        }
        return {**vars(self), **special}


@final
@dataclass(frozen=True)
class RouterFit:
    """A fitted router and what was seen on the way.

    Attributes:
        router: It.
        evaluation: On the test part.
        trunk: The trunk's training.
    """

    router: Router
    evaluation: Evaluation
    trunk: TrunkFit


def fit_router(
    dataset: RoutingDataset,
    stores: Sequence[Activations],
    *,
    config: FitConfig | None = None,
    drawn: Split | None = None,
    progress: Progress | None = None,
) -> RouterFit:
    """Fit a router on the train part and judge it on the test part.

    Args:
        dataset: Scored answers.
        stores: The states of its queries, one store per encoder.
        config: The options; the paper's defaults if not given.
        drawn: The split; drawn with `config.seed` if not given.
        progress: Shows how far it is.

    Raises:
        DataError: The split names queries that the dataset lacks, or the dataset is too small.
        StoreError: A store lacks states of these queries.
        ConfigError: The options contradict each other, or costs can't be estimated.
        FitError: There is nothing to learn from.
    """
    config, shown = config or FitConfig(), progress or SilentProgress()
    drawn = drawn or split(dataset, seed=config.seed)
    train, test = dataset.select(drawn["train"]), dataset.select(drawn["test"])
    if np.isnan(train.correct).all():
        raise FitError("no training query has a label; check the outcomes and the split")
    features = _features(stores, train, config, shown)
    used = [store for store in stores if store.provenance in features.provenances]
    trunk = fit_trunk(
        features.transform(used, train.prompt_keys),
        train.correct,
        train.pool.names,
        config=config.trunk,
        progress=shown,
    )
    costs = _costs(train, used, features, config)
    record = _record(dataset, drawn, config, trunk, _notes(costs, features, trunk))
    router = Router(features, trunk.predictor, costs, drawn, record)
    predictions = router.predict(test, stores=used, progress=shown)
    judged = evaluate(predictions, test, resamples=config.resamples, progress=shown)
    return RouterFit(_with_metrics(router, judged), judged, trunk)


def _plain(pinned: Pinned | None) -> str | dict[str, str] | None:
    if pinned is None or isinstance(pinned, Site):
        return None if pinned is None else pinned.name
    return {target: site.name for target, site in pinned.items()}


def _features(
    stores: Sequence[Activations], train: RoutingDataset, config: FitConfig, progress: Progress
) -> FeatureExtractor:
    return FeatureExtractor.fit(
        stores,
        train,
        mode=config.mode,
        method=config.method,
        scope=config.scope,
        dim=config.dim,
        poolings=config.poolings,
        all_layers=config.all_layers,
        pinned=config.pinned,
        assignments=_assigned(stores, config) if config.assignments else None,
        seed=config.seed,
        progress=progress,
    )


def _assigned(stores: Sequence[Activations], config: FitConfig) -> dict[str, Activations]:
    names = [store.provenance.encoder for store in stores]
    shared = sorted({n for n in config.assignments.values() if names.count(n) > 1})
    if shared:
        raise ConfigError(
            f"several stores are of the encoders {shared}, so a name doesn't say which is meant; "
            "give one store of each"
        )
    by_name = dict(zip(names, stores, strict=True))
    unknown = sorted(set(config.assignments.values()) - by_name.keys())
    if unknown:
        raise ConfigError(
            f"no store is of the encoders {unknown}; the stores are of {list(by_name)}"
        )
    return {target: by_name[name] for target, name in config.assignments.items()}


def _costs(
    train: RoutingDataset,
    stores: Sequence[Activations],
    features: FeatureExtractor,
    config: FitConfig,
) -> CostEstimator:
    counted = next(s for s in stores if s.provenance == features.provenances[0])
    return CostEstimator.fit(
        train,
        counted.tokens(train.prompt_keys),
        assumed_output_tokens=config.assumed_output_tokens,
    )


def _notes(costs: CostEstimator, features: FeatureExtractor, trunk: TrunkFit) -> tuple[str, ...]:
    free = ("no costs are known, so every lam but 0 chooses the most probable target",)
    estimated = [
        f"{name} lacks prices or output token counts; its cost is the median recorded one"
        for name in costs.recorded
    ]
    judged = [
        f"{target}: {choice['note']}"
        for encoder in features.selection.get("encoders", [])
        for target, choice in encoder.get("targets", {}).items()
        if choice["note"].startswith("too few")
    ]
    return (*(free if costs.is_free else ()), *estimated, *judged, *trunk.notes)


def _record(
    dataset: RoutingDataset,
    drawn: Split,
    config: FitConfig,
    trunk: TrunkFit,
    notes: tuple[str, ...],
) -> Record:
    return Record(
        created=datetime.now(UTC).date().isoformat(),
        package=__version__,
        trained_on=TrainedOn(
            fingerprint=dataset.fingerprint,
            queries={part: len(ids) for part, ids in drawn.parts.items()},
            benchmarks=dict(sorted(Counter(q.benchmark for q in dataset.queries).items())),
            missing_labels=int(np.isnan(dataset.correct).sum()),
        ),
        options=config.to_dict(),
        training=trunk.curves.to_dict(),
        notes=notes,
    )


def _with_metrics(router: Router, judged: Evaluation) -> Router:
    metrics = {
        name: Interval.model_validate(estimate.to_dict(), extra="ignore")
        for name, estimate in judged.headline.items()
    }
    return router.with_record(router.record.model_copy(update={"metrics": metrics}))
