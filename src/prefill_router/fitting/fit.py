"""Fits a router: from a dataset and states to something that routes.

Everything fitted comes from the train part: the sites, the reducers, the predictor, the costs; and
the calibrator from the calibration part. The test part is opened once, at the end, for the numbers
on the card.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

import numpy as np

from prefill_router import __version__
from prefill_router.activations import Activations
from prefill_router.calibration import Calibrator, CalibratorKind, fit_calibrator
from prefill_router.cost import CostEstimator
from prefill_router.data import WITH_CALIBRATION, RoutingDataset, Split, split
from prefill_router.data.splits import FRACTIONS
from prefill_router.errors import ConfigError, FitError
from prefill_router.evaluation import Evaluation, evaluate
from prefill_router.features import FeatureExtractor, Reading
from prefill_router.features.combined import FeatureSet
from prefill_router.fitting.cascade import chosen_policy
from prefill_router.fitting.config import FitConfig
from prefill_router.fitting.descriptions import describe
from prefill_router.fitting.soft import mixed
from prefill_router.fitting.states import gather
from prefill_router.predictors import Examples, PredictorFit
from prefill_router.progress import Progress, SilentProgress
from prefill_router.router import EncoderSources, Interval, Record, Router, TrainedOn
from prefill_router.router.reference import Reference
from prefill_router.router.states import count_tokens


@final
@dataclass(frozen=True)
class RouterFit:
    """A fitted router and what was seen on the way.

    Attributes:
        router: It.
        evaluation: On the test part.
    """

    router: Router
    evaluation: Evaluation


def fit_router(
    dataset: RoutingDataset,
    stores: Sequence[Activations] = (),
    *,
    config: FitConfig | None = None,
    drawn: Split | None = None,
    sources: EncoderSources | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> RouterFit:
    """Fit a router on the train part and judge it on the test part.

    Args:
        dataset: Scored answers.
        stores: The states of its queries, one store per encoder; what is lacking is encoded now.
        config: The options; the paper's defaults if not given.
        drawn: The split; drawn with `config.seed` if not given.
        sources: Where encoders are found.
        cache: Keeps what is encoded now; the user's cache if not given.
        progress: Shows how far it is.

    Raises:
        DataError: The split names queries that the dataset lacks, or the dataset is too small.
        StoreError: A store lacks states of these queries.
        ConfigError: The options contradict each other, or costs can't be estimated.
        FitError: There is nothing to learn from.
    """
    config, shown = config or FitConfig(), progress or SilentProgress()
    drawn = drawn or draw(dataset, config)
    needs = config.recipe.needs
    states = gather(needs, dataset, stores, sources=sources, cache=cache, progress=shown)
    router = learn(dataset, states, drawn, config=config, progress=shown)
    router = router.with_sources(sources or EncoderSources())
    test = dataset.select(drawn["test"])
    predictions = router.predict(test, stores=states, progress=shown)
    judged = evaluate(
        predictions, test, policy=router.policy, resamples=config.resamples, progress=shown
    )
    return RouterFit(_with_metrics(router, judged), judged)


def draw(dataset: RoutingDataset, config: FitConfig) -> Split:
    """The split that a fit draws where none is given: with a calibration part where one is used."""
    calibrated = config.recipe.calibration != "none"
    return split(dataset, seed=config.seed, fractions=WITH_CALIBRATION if calibrated else FRACTIONS)


def learn(
    dataset: RoutingDataset,
    states: Sequence[Activations],
    drawn: Split,
    *,
    config: FitConfig,
    progress: Progress | None = None,
) -> Router:
    """Fit a router; the test part of the split isn't looked at.

    Args:
        dataset: Scored answers.
        states: What the recipe's features read, see `fitting.states.gather`.
        drawn: The split.
        config: The options.
        progress: Shows how far it is.

    Raises:
        DataError: The split names queries that the dataset lacks.
        StoreError: States are missing.
        ConfigError: The options contradict each other, or costs can't be estimated.
        FitError: There is nothing to learn from.
    """
    shown, recipe = progress or SilentProgress(), config.recipe
    _check_calibration(drawn, recipe.calibration)
    train = dataset.select(drawn["train"])
    if np.isnan(train.correct).all():
        raise FitError("no training query has a label; check the outcomes and the split")
    families = [one.fit(train, states, seed=config.seed, progress=shown) for one in recipe.features]
    features = FeatureSet(tuple(families))
    columns = features.read(Reading.of_dataset(train, states))
    groups = tuple(" / ".join(filter(None, (q.benchmark, q.domain))) for q in train.queries)
    reader = recipe.predictor.describes_with
    examples = Examples(
        columns,
        train.correct if recipe.soft_labels is None else mixed(train, recipe.soft_labels),
        train.pool.names,
        groups,
        costs=train.observed_cost,
        descriptions=None if reader is None else describe(train.pool, groups, reader),
    )
    fitted = recipe.predictor.fit(examples, seed=config.seed, progress=shown)
    calibrator, said = _calibrated(dataset, states, drawn, features, fitted, recipe.calibration)
    counts = count_tokens(features, Reading.of_dataset(train, states))
    costs = CostEstimator.fit(train, counts, assumed_output_tokens=config.assumed_output_tokens)
    policy, learned = chosen_policy(
        examples,
        recipe,
        train=train,
        estimated_cost=costs.estimate(counts, input_tokens=train.input_tokens),
        calibrator=calibrator,
        seed=config.seed,
    )
    notes = (*_notes(costs, features), *fitted.notes, *said, *learned)
    return Router(
        features=features,
        predictor=fitted.predictor,
        calibrator=calibrator,
        policy=policy,
        reference=Reference.fit(columns, train.correct),
        costs=costs,
        split=drawn,
        record=_record(dataset, drawn, config, fitted.training, notes),
    )


def _check_calibration(drawn: Split, kind: CalibratorKind) -> None:
    if kind != "none" and "calibration" not in drawn.parts:
        raise ConfigError(
            f"the calibration {kind} needs queries of its own, and the split has no calibration "
            "part; draw one with: prefill-router split --calibration"
        )


def _calibrated(
    dataset: RoutingDataset,
    states: Sequence[Activations],
    drawn: Split,
    features: FeatureSet,
    fitted: PredictorFit,
    kind: CalibratorKind,
) -> tuple[Calibrator | None, tuple[str, ...]]:
    if kind == "none":
        return None, ()
    part = dataset.select(drawn["calibration"])
    predicted = fitted.predictor.correctness(features.read(Reading.of_dataset(part, states)))
    found = fit_calibrator(kind, predicted, part.correct, part.pool.names)
    return found.calibrator, found.notes


def _notes(costs: CostEstimator, features: FeatureSet) -> tuple[str, ...]:
    free = ("no costs are known, so every lam but 0 chooses the most probable target",)
    estimated = [
        f"{name} lacks prices or output token counts; its cost is the median recorded one"
        for name in costs.recorded
    ]
    judged = [
        f"{target}: {choice['note']}"
        for family in features.families
        if isinstance(family, FeatureExtractor)
        for encoder in family.selection.get("encoders", [])
        for target, choice in encoder.get("targets", {}).items()
        if choice["note"].startswith("too few")
    ]
    return (*(free if costs.is_free else ()), *estimated, *judged)


def _record(
    dataset: RoutingDataset,
    drawn: Split,
    config: FitConfig,
    training: Any,
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
        training=dict(training),
        notes=notes,
    )


def _with_metrics(router: Router, judged: Evaluation) -> Router:
    metrics = {
        name: Interval.model_validate(estimate.to_dict(), extra="ignore")
        for name, estimate in judged.headline.items()
    }
    return router.with_record(router.record.model_copy(update={"metrics": metrics}))
