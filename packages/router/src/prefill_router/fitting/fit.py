"""Fitting of a router from a dataset and hidden states.

Sites, reducers, predictor, shrinkage and costs are fitted on the train part, and the calibrator on
the calibration part. By default these are all queries, and the router is judged by cross-fitting
(`cross_fitting`). A test part, if there is one, is used once, at the end. Before a router is
written, it is checked that no other router is replaced by mistake.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_jsonable_python

from prefill_router import __version__
from prefill_router.activations import Activations
from prefill_router.calibration import Calibrator, CalibratorKind, Shrinkage
from prefill_router.cost import CostEstimator, OutputFit, fit_output
from prefill_router.data import Part, RoutingDataset, Split, split
from prefill_router.encoders import recorded_name
from prefill_router.errors import ConfigError, DataError, FitError, PrefillRouterError
from prefill_router.evaluation import (
    Evaluation,
    References,
    SettingRule,
    Trial,
    Verdict,
    WinVerdict,
    choose_operating_points,
    evaluate,
    judge,
    judge_votes,
)
from prefill_router.features import MOST_SEARCHED, FeatureExtractor, FeatureSet, PromptStates
from prefill_router.fitting.cross_fitting import CrossFitter, Learn
from prefill_router.fitting.inputs import (
    FOLDS,
    OutOfFold,
    calibrate,
    correct_labels,
    describe,
    error_notes,
    folds_of,
    gather,
    learn_cascade,
    mix_soft_labels,
    posterior_labels,
)
from prefill_router.fitting.recipe import FitConfig, Recipe
from prefill_router.fitting.votes import (
    adapt_to_votes,
    part_of_votes,
    parts_out_of_fold,
    settle_votes,
)
from prefill_router.policy import FrugalCascade, Lambda, OperatingPoints, Predictions
from prefill_router.predictors import Examples, PredictorFit, out_of_fold
from prefill_router.progress import Progress, SilentProgress
from prefill_router.remote import PathOrUrl
from prefill_router.router import (
    CrossFit,
    EncoderSources,
    Interval,
    Router,
    RouterRecord,
    TrainedOn,
    TrainReference,
    count_tokens,
    is_router,
)
from prefill_router.short_repr import short_repr


@short_repr
@final
@dataclass(frozen=True)
class RouterFit:
    """A fitted router and its evaluation.

    Attributes:
        router: The fitted router.
        evaluation: Its evaluation on the test part, or else by cross-fitting on all rows that it
            learned from. None where there is neither, or it learned from votes.
        win_verdict: The verdict on a router that learned from votes.
    """

    router: Router
    evaluation: Evaluation | None
    win_verdict: WinVerdict | None = None

    @property
    def verdict(self) -> Verdict | WinVerdict | None:
        """Whether it is worth using: by cross-fitting, or else on the test part."""
        return self.win_verdict if self.evaluation is None else self.evaluation.verdict


def fit_router(
    dataset: RoutingDataset,
    stores: Sequence[Activations] = (),
    *,
    config: FitConfig | None = None,
    split: Split | None = None,
    sources: EncoderSources | None = None,
    cache: Path | None = None,
    verdict: bool | None = None,
    save: Callable[[Router], None] | None = None,
    progress: Progress | None = None,
) -> RouterFit:
    """Fit a router on all scored answers but the test part, and judge it.

    From votes it learns each target's chance to win against the average target, and the verdict is
    in win rate (`fitting.votes`, `evaluation.win_rate`).

    Args:
        dataset: The scored answers.
        stores: The states of its queries, one store per encoder; missing states are encoded now.
        config: The options; the paper's defaults if not given.
        split: The split; without it every query but the share `config.test` is learned from.
        sources: The paths of encoders, by name.
        cache: The folder for states that are encoded now; the user's cache if not given.
        verdict: Whether it is judged by cross-fitting on the rows that it learned from, which takes
            five more fits. By default where there is no test part.
        save: Called with the router once it is fitted, before it is judged.
        progress: Shows the progress.

    Raises:
        DataError: The split names queries that the dataset lacks, or the dataset is too small.
        StoreError: A store lacks states of these queries.
        ConfigError: The options contradict each other, or costs can't be estimated.
        FitError: There is nothing to learn from.
    """
    config, progress = config or FitConfig(), progress or SilentProgress()
    _check_routable(dataset)
    config = adapt_to_votes(dataset, config)
    split = split or draw(dataset, config)
    states = gather(
        config.recipe.needs, dataset, stores, sources=sources, cache=cache, progress=progress
    )
    router = learn(dataset, states, split, config=config, progress=progress)
    again = replace(config, test=0.0)

    def learn_fold(part: RoutingDataset) -> Router:
        return learn(part, states, draw(part, again), config=again)

    judging = FitJudge(dataset, states, config, learn_fold, cache, verdict)
    return judging.judge(router.with_sources(sources or EncoderSources()), save, progress)


@final
@dataclass(frozen=True, eq=False)
class FitJudge:
    """Judges a router that was fitted on a dataset.

    Attributes:
        dataset: The scored answers.
        states: The states of its queries.
        config: The options of the fit.
        learn: Fits a router on all rows of a dataset in the same way.
        cache: The folder where finished folds are kept; in memory if not given.
        verdict: As for `fit_router`.
    """

    dataset: RoutingDataset
    states: Sequence[Activations]
    config: FitConfig
    learn: Learn
    cache: Path | None = None
    verdict: bool | None = None

    def judge(
        self, router: Router, save: Callable[[Router], None] | None, progress: Progress
    ) -> RouterFit:
        """Judge it on the test part, and by cross-fitting; `save` gets it before that."""
        if router.is_voted:
            return self._judge_votes(router, save, progress)
        sealed = self._on_test_part(router, progress)
        if sealed is not None:
            router = _with_metrics(router, sealed)
        if save is not None:
            save(router)
        if not (sealed is None if self.verdict is None else self.verdict):
            return RouterFit(router, sealed)
        try:
            crossed = self._cross_fit(router, progress)
        except (FitError, DataError) as error:
            return RouterFit(_with_note(router, error), sealed)
        parts = crossed.judged_parts(self.dataset, policy=router.policy)
        router = replace(router, cross_fit=crossed)
        self._cross_fitter(router).forget()
        if sealed is not None:
            verdict = judge(parts, lam=router.setting, resamples=self.config.resamples)
            record = router.record.model_copy(
                update={"verdict": verdict.to_dict(), "test_verdict": router.record.verdict}
            )
            return RouterFit(router.with_record(record), replace(sealed, verdict=verdict))
        evaluation = evaluate(
            crossed.comparable_predictions,
            self.dataset,
            policy=router.policy,
            resamples=self.config.resamples,
            progress=progress,
        )
        evaluation = evaluation.with_parts(
            parts, lam=router.setting, resamples=self.config.resamples
        )
        return RouterFit(_with_metrics(router, evaluation), evaluation)

    def _judge_votes(
        self, router: Router, save: Callable[[Router], None] | None, progress: Progress
    ) -> RouterFit:
        """The same in win rate, for a router that learned from votes."""
        sealed: WinVerdict | None = None
        if "test" in router.split.parts:
            test = self.dataset.select(router.split["test"])
            sealed = judge_votes([part_of_votes(router, test, self.states)])
            router = _with_win_verdict(router, sealed)
        if save is not None:
            save(router)
        if not (sealed is None if self.verdict is None else self.verdict):
            return RouterFit(router, None, sealed)
        try:
            crossed = self._cross_fit(router, progress)
        except (FitError, DataError) as error:
            return RouterFit(_with_note(router, error), None, sealed)
        verdict = judge_votes(parts_out_of_fold(crossed, self.dataset))
        self._cross_fitter(router).forget()
        router = _with_win_verdict(replace(router, cross_fit=crossed), verdict)
        if sealed is not None:
            update = {"test_verdict": sealed.to_dict()}
            router = router.with_record(router.record.model_copy(update=update))
        return RouterFit(router, None, verdict)

    def _on_test_part(self, router: Router, progress: Progress) -> Evaluation | None:
        if "test" not in router.split.parts:
            return None
        test = self.dataset.select(router.split["test"])
        return evaluate(
            router.predict(test, stores=self.states, progress=progress),
            test,
            policy=router.policy,
            resamples=self.config.resamples,
            chosen=router.record.chosen,
            references=router.references,
            progress=progress,
        )

    def _cross_fit(self, router: Router, progress: Progress) -> CrossFit:
        if isinstance(self.config.recipe.policy, FrugalCascade):
            raise FitError(
                "a cascade can't be judged by cross-fitting, since each fold would learn "
                "another cascade; seal a test part with --test"
            )
        return self._cross_fitter(router).fit(self.learn, progress=progress)

    def _cross_fitter(self, router: Router) -> CrossFitter:
        return CrossFitter(self.dataset, self.states, router.split, self.config, self.cache)


def draw(dataset: RoutingDataset, config: FitConfig) -> Split:
    """The split of a fit without one of its own.

    The fit learns from all queries but the share `config.test`; a recipe with a calibration keeps a
    tenth of them for it.
    """
    calibrated = config.recipe.calibration != "none"
    if not calibrated and not config.test:
        return Split({"train": tuple(sorted(dataset.query_ids))}, config.seed, {})
    shares: dict[Part, float] = {"train": 1 - config.test}
    if calibrated:
        shares = {"train": 0.9 * shares["train"], "calibration": 0.1 * shares["train"]}
    if config.test:
        shares["test"] = config.test
    return split(dataset, seed=config.seed, fractions=shares)


def learn(
    dataset: RoutingDataset,
    states: Sequence[Activations],
    split: Split,
    *,
    config: FitConfig,
    progress: Progress | None = None,
) -> Router:
    """Fit a router; the test part of the split isn't used.

    Args:
        dataset: The scored answers.
        states: The states that the recipe's features read, see `fitting.inputs.gather`.
        split: The split.
        config: The options.
        progress: Shows the progress.

    Raises:
        DataError: The split names queries that the dataset lacks.
        StoreError: States are missing.
        ConfigError: The options contradict each other, or costs can't be estimated.
        FitError: There is nothing to learn from.
    """
    config, progress = adapt_to_votes(dataset, config), progress or SilentProgress()
    _check_routable(dataset)
    _check_calibration(split, config.recipe.calibration)
    train = _select_train(dataset, split)
    learned = _fit_parts(dataset, states, split, train, config, progress)
    if learned.router.is_voted:
        return settle_votes(learned.router, train)
    expected = learned.costs_out_of_fold(train)
    router = _with_references(learned.router, train, expected)
    if learned.unseen is None:
        return router
    return _with_choices(router, config, learned.unseen, train, expected)


@final
@dataclass(frozen=True, eq=False)
class _LearnedParts:
    """A router without references and choices, and what these are learned from.

    Attributes:
        router: The router.
        unseen: Out-of-fold predictions for train rows, if they are needed.
        output: The predicted outputs of train rows; None where the recipe doesn't predict them.
        tokens: The prompt tokens of each train row.
    """

    router: Router
    unseen: OutOfFold | None
    output: OutputFit | None
    tokens: NDArray[np.int64]

    def costs_out_of_fold(self, train: RoutingDataset) -> NDArray[np.float64]:
        """Estimated costs of train rows, with outputs predicted out of fold."""
        expected = None if self.output is None else self.output.out_of_fold.mean
        return self.router.costs.estimate(
            self.tokens, input_tokens=train.input_tokens, expected=expected
        )


def _select_train(dataset: RoutingDataset, split: Split) -> RoutingDataset:
    train = dataset.select(split["train"])
    if np.isnan(train.correct).all():
        raise FitError("no train row has a label; check the outcomes and the split")
    return train


def _fit_parts(
    dataset: RoutingDataset,
    states: Sequence[Activations],
    split: Split,
    train: RoutingDataset,
    config: FitConfig,
    progress: Progress,
) -> _LearnedParts:
    recipe, prompts = config.recipe, PromptStates.of_dataset(train, states)
    features = _fit_features(config, train, states, progress)
    columns = features.read(prompts)
    reference = TrainReference.fit(columns, train.correct)
    fitted, unseen, shrinkage = _fit_predictor(config, columns, train, progress)
    calibrator, calibrator_notes = _fit_calibrator(
        dataset, states, split, features, fitted, shrinkage, recipe.calibration
    )
    tokens = count_tokens(features, prompts)
    costs, output = _fit_costs(columns, train, tokens, config)
    notes = (
        *_list_notes(costs, features, len(train)),
        *fitted.notes,
        *error_notes(train),
        *_shrinkage_notes(shrinkage),
        *calibrator_notes,
    )
    router = Router(
        features=features,
        predictor=fitted.predictor,
        shrinkage=shrinkage,
        calibrator=calibrator,
        policy=Lambda() if isinstance(recipe.policy, FrugalCascade) else recipe.policy,
        reference=reference,
        costs=costs,
        output=None if output is None else output.head,
        split=split,
        record=_make_record(dataset, split, config, fitted.training, notes),
    )
    return _LearnedParts(router, unseen, output, tokens)


def _fit_predictor(
    config: FitConfig, columns: NDArray[np.float32], train: RoutingDataset, progress: Progress
) -> tuple[PredictorFit, OutOfFold | None, Shrinkage | None]:
    """The predictor; its out-of-fold predictions, if they are needed; the shrinkage, if any."""
    recipe, seed = config.recipe, config.seed
    examples, unbiased_labels = _make_examples(config, columns, train, progress)
    fitted = recipe.predictor.fit(examples, seed=seed, progress=progress)
    unseen, shrinkage = _fit_shrinkage(recipe, fitted, examples, unbiased_labels, seed, progress)
    return fitted, unseen, shrinkage


def _fit_features(
    config: FitConfig, train: RoutingDataset, states: Sequence[Activations], progress: Progress
) -> FeatureSet:
    families = [
        family.fit(train, states, seed=config.seed, progress=progress)
        for family in config.recipe.features
    ]
    return FeatureSet(tuple(families))


def _with_references(router: Router, train: RoutingDataset, cost: NDArray[np.float64]) -> Router:
    """The router with the rules that it is compared with, learned from the train rows."""
    references = References.fit(train, router.costs.scale.normalise(cost)).to_dict()
    return router.with_record(router.record.model_copy(update={"references": references}))


def _make_examples(
    config: FitConfig, columns: NDArray[np.float32], train: RoutingDataset, progress: Progress
) -> tuple[Examples, NDArray[np.float64]]:
    """The train rows of the predictor, and labels that are right on average."""
    recipe, seed = config.recipe, config.seed
    count = recipe.policy.folds if isinstance(recipe.policy, FrugalCascade) else FOLDS
    groups, reader = train.domains, recipe.predictor.describes_with
    examples = Examples(
        columns,
        train.correct if recipe.soft_labels is None else mix_soft_labels(train, recipe.soft_labels),
        train.pool.names,
        groups,
        costs=train.observed_cost,
        descriptions=None if reader is None else describe(train.pool, groups, reader),
        folds=folds_of(train, seed=seed, count=count),
    )
    error = train.label_error
    labels = posterior_labels(recipe.predictor, examples, error, seed=seed, progress=progress)
    return replace(examples, correct=labels), correct_labels(examples.correct, error)


def _fit_costs(
    columns: NDArray[np.float32],
    train: RoutingDataset,
    tokens: NDArray[np.int64],
    config: FitConfig,
) -> tuple[CostEstimator, OutputFit | None]:
    """Equation 1, and the predicted output of each query if the recipe asks for it."""
    costs = CostEstimator.fit(train, tokens, assumed_output_tokens=config.assumed_output_tokens)
    if config.recipe.cost == "median":
        return costs, None
    return costs, fit_output(columns, train, tokens, folds_of(train, seed=config.seed), costs)


def _fit_shrinkage(
    recipe: Recipe,
    fitted: PredictorFit,
    examples: Examples,
    unbiased_labels: NDArray[np.float64],
    seed: int,
    progress: Progress,
) -> tuple[OutOfFold | None, Shrinkage | None]:
    """Out-of-fold predictions for train rows, if they are needed, and the shrinkage if any.

    The shrinkage is learned from labels that are right on average (`happened`).
    """
    cascade = isinstance(recipe.policy, FrugalCascade)
    if not (recipe.shrinkage or recipe.operating_points or cascade) or examples.folds is None:
        return None, None
    predictions = fitted.unseen
    if predictions is None:
        predictions = out_of_fold(recipe.predictor, examples, seed=seed, progress=progress)
    unseen = OutOfFold(predictions, examples.folds)
    if not recipe.shrinkage:
        return unseen, None
    folds = unseen.folds
    return unseen, Shrinkage.fit(unseen.correctness, unbiased_labels, folds, examples.targets)


def _with_choices(
    router: Router,
    config: FitConfig,
    unseen: OutOfFold,
    train: RoutingDataset,
    cost: NDArray[np.float64],
) -> Router:
    """The router with what is learned from its out-of-fold predictions for train rows."""
    record, recipe = router.record, config.recipe
    if isinstance(recipe.policy, FrugalCascade):
        policy, cascade_notes = learn_cascade(
            recipe.policy,
            router.calibrate(unseen.correctness),
            unseen,
            train=train,
            estimated_cost=cost,
        )
        router = replace(router, policy=policy)
        record = record.model_copy(update={"notes": (*record.notes, *cascade_notes)})
    if not recipe.operating_points:
        return router.with_record(record)
    chosen = _operating_points(router, unseen, train, cost, config.setting)
    return router.with_record(record.model_copy(update={"chosen": chosen}))


def _operating_points(
    router: Router,
    unseen: OutOfFold,
    train: RoutingDataset,
    cost: NDArray[np.float64],
    rule: SettingRule,
) -> OperatingPoints | None:
    """The settings that are best on train rows, by out-of-fold predictions."""
    is_predicted = ~np.isnan(unseen.correctness).any(axis=1)
    if not is_predicted.any() or np.isnan(train.correct[is_predicted]).all():
        return None
    predictions = Predictions(
        query_ids=tuple(np.array(train.query_ids, dtype=object)[is_predicted].tolist()),
        targets=router.pool.names,
        correctness=router.calibrate(unseen.correctness[is_predicted]),
        estimated_cost=cost[is_predicted],
        scale=router.costs.scale,
    )
    trial = Trial.join(predictions, train, policy=router.policy)
    return choose_operating_points(trial, rule)


def _check_routable(dataset: RoutingDataset) -> None:
    if len(dataset.pool) < 2:
        raise FitError(
            f"there is nothing to route: the dataset has one target, {dataset.pool.names[0]!r}; "
            "add the answers of another target, which prefill-router merge can combine with these"
        )


def _check_calibration(split: Split, kind: CalibratorKind) -> None:
    if kind != "none" and "calibration" not in split.parts:
        raise ConfigError(
            f"the calibration {kind} needs its own queries, and the split has no calibration "
            "part; draw one with: prefill-router split --calibration"
        )


def _shrinkage_notes(shrinkage: Shrinkage | None) -> tuple[str, ...]:
    if shrinkage is None or shrinkage.choice:
        return ()
    return (
        "nothing was learned about which target suits a query better, so at each lam the base "
        "rates decide; more labelled queries may change that",
    )


def _fit_calibrator(
    dataset: RoutingDataset,
    states: Sequence[Activations],
    split: Split,
    features: FeatureSet,
    fitted: PredictorFit,
    shrinkage: Shrinkage | None,
    kind: CalibratorKind,
) -> tuple[Calibrator | None, tuple[str, ...]]:
    if kind == "none":
        return None, ()
    part = dataset.select(split["calibration"])
    predicted = fitted.predictor.correctness(features.read(PromptStates.of_dataset(part, states)))
    if shrinkage is not None:
        predicted = shrinkage.shrink(predicted)
    calibration = calibrate(kind, predicted, part)
    return calibration.calibrator, calibration.notes


def _list_notes(costs: CostEstimator, features: FeatureSet, rows: int) -> tuple[str, ...]:
    free = ("no costs are known, so every lam but 0 chooses the most probable target",)
    names = ", ".join(costs.recorded_targets)
    estimated = [f"costs are learned from the recorded ones, not from prices and tokens: {names}"]
    estimated = estimated if names else []
    site_notes = [
        f"{target}: {choice['note']}"
        for family in features.families
        if isinstance(family, FeatureExtractor)
        for encoder in family.selection.get("encoders", [])
        for target, choice in encoder.get("targets", {}).items()
        if choice["note"].startswith("too few")
    ]
    searching = rows > MOST_SEARCHED and any(
        family.kind == "neighbours" for family in features.families
    )
    sampled = (f"neighbours are searched among {MOST_SEARCHED:,} of the {rows:,} train rows",)
    return (
        *(free if costs.is_free else ()),
        *estimated,
        *site_notes,
        *(sampled if searching else ()),
    )


def _make_record(
    dataset: RoutingDataset,
    split: Split,
    config: FitConfig,
    training: Any,
    notes: tuple[str, ...],
) -> RouterRecord:
    return RouterRecord(
        created=datetime.now(UTC).date().isoformat(),
        package=__version__,
        trained_on=TrainedOn(
            fingerprint=dataset.fingerprint,
            queries={part: len(ids) for part, ids in split.parts.items()},
            benchmarks=dict(sorted(Counter(q.benchmark for q in dataset.queries).items())),
            missing_labels=int(np.isnan(dataset.correct).sum()),
        ),
        labels=dataset.meaning.kind,
        options=config.to_dict(),
        training=dict(training),
        notes=notes,
    )


def _with_metrics(router: Router, judged: Evaluation) -> Router:
    metrics = {
        name: Interval.model_validate(estimate.to_dict(), extra="ignore")
        for name, estimate in judged.headline.items()
    }
    verdict = None if judged.verdict is None else judged.verdict.to_dict()
    outcome = {"metrics": metrics, "verdict": verdict}
    return router.with_record(router.record.model_copy(update=outcome))


def _with_win_verdict(router: Router, verdict: WinVerdict) -> Router:
    metrics = {
        name: Interval.model_validate(estimate.to_dict(), extra="ignore")
        for name, estimate in verdict.metrics.items()
    }
    update = {"metrics": metrics, "verdict": verdict.to_dict()}
    return router.with_record(router.record.model_copy(update=update))


def _with_note(router: Router, error: PrefillRouterError) -> Router:
    notes = (*router.record.notes, f"not judged by cross-fitting: {error}")
    return router.with_record(router.record.model_copy(update={"notes": notes}))


def check_same_fit(
    folder: PathOrUrl,
    dataset: RoutingDataset,
    stores: Sequence[Activations],
    *,
    config: FitConfig,
    split: Split | None,
) -> None:
    """Check that a folder holds no router, or the result of the same fit.

    Args:
        folder: The folder of the router.
        dataset: The scored answers, as for `fit_router`.
        stores: The states.
        config: The options.
        split: The split; None where it is drawn.

    Raises:
        ConfigError: The folder holds another router, or one whose prices were changed since.
    """
    if not is_router(folder):
        return
    config = adapt_to_votes(dataset, config)
    try:
        earlier = Router.load(folder)
    except PrefillRouterError:
        raise ConfigError(f"{folder} is a router that can't be read; {_FIX}") from None
    needed = {recorded_name(need.encoder) for need in config.recipe.needs}
    encoders = {store.provenance.encoder for store in stores} | needed
    if (
        earlier.record.trained_on.fingerprint != dataset.fingerprint
        or _drop_chosen_recipe(earlier.record.options)
        != _drop_chosen_recipe(to_jsonable_python(config.to_dict()))
        or earlier.split != (split or draw(dataset, config))
        or earlier.is_repriced
        or not {provenance.encoder for provenance in earlier.features.provenances} <= encoders
    ):
        raise ConfigError(
            f"{folder} has another router, fitted on {earlier.record.created}: its data or "
            f"options differ, or its prices changed since; {_FIX}"
        )


def _drop_chosen_recipe(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given; a recipe that was chosen isn't one of them."""
    return {
        name: value
        for name, value in options.items()
        if name != "recipe" or "effort" not in options
    }


_FIX = "name another folder, or pass --overwrite"
