"""One round of learning: labels, a dataset, a fit, a verdict, and a version that may take over.

Each step keeps what it has done, so a round that was interrupted goes on where it was: labels and
charges in the database, states in the cache, versions in their registry.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from prefill_router.activations import Activations
from prefill_router.data import FRACTIONS, RoutingDataset, Split, split_by_time
from prefill_router.database import Database
from prefill_router.errors import ConfigError, DataError, FitError
from prefill_router.evaluation import Bootstrap, Estimate, SettingRule, Trial, mean_over
from prefill_router.features import Need
from prefill_router.files import writer_lock
from prefill_router.fitting import FitConfig, Recipe, RouterFit, fit_chosen, fit_router, gather
from prefill_router.grading import RUBRIC
from prefill_router.progress import Progress, SilentProgress
from prefill_router.router import EncoderSources, Router, VersionRegistry
from prefill_router.targets import Pool
from prefill_router_gateway.learning.judging import AnswerJudges, Form
from prefill_router_gateway.learning.labelling import Labelling, LabellingRound, source_words
from prefill_router_gateway.learning.paid_questions import BudgetLimits, LearningBudget
from prefill_router_gateway.learning.rollout import CandidateStep, CandidateTrial
from prefill_router_gateway.learning.side_plan import LabellingSettings
from prefill_router_gateway.learning.target_changes import (
    current_samples,
    current_scores,
    fit_is_due,
    follow_changes,
)
from prefill_router_gateway.learning.target_checks import TargetChecks
from prefill_router_gateway.learning.verifiers import Verifiers
from prefill_router_gateway.receipts import (
    DatasetExport,
    RecordedChange,
    export,
    file_of,
    labelled_samples,
    open_learning,
    open_store,
    scored_receipts,
    turns_by_request,
)

_MORE: Final = 1.1
"""A version is fitted once there are this many times the labels of the last one."""
_MORE_THAN_TRIED: Final = 2.0
"""The same while the last one is a candidate, which a new one would replace."""
_LOSE: Final = 0.0
"""The points that a version's setting may lose to the best target, as `fit --lose`. It has to prove
in traffic that it isn't worse, which a version that loses as much as a fit's default seldom can."""
_RESAMPLES = 1000


@final
@dataclass(frozen=True, kw_only=True)
class LearnerSettings:
    """What a learner works with.

    Attributes:
        receipts: The database of receipts, as for `open_store`.
        pool: The targets, with their endpoints and prices.
        judges: The judges, with theirs.
        versions: The folder or URL of the versions.
        limits: What may be spent.
        encoder: The encoder's name, as for `encode`.
        recipe: What is fitted; by default the best of a few, as `fit --effort quick` finds it.
        rubric: What a right answer is.
        form: Whether answers are judged one by one, or in pairs.
        pattern: A regular expression that is found in every right answer; None for none.
        function: The user's verifier, as `grade --grader-function` takes it; None for none.
        run_tests: Whether the tests in requests are run on the programs in answers.
        labelling: How labels are made.
        least: The fewest labels of an answer of each of two targets to fit on.
        anchors_every: After how many of its requests a target is asked its anchors; 0 for never.
        sources: The paths of encoders, by name.
        cache: The folder for states; the user's cache if not given.

    Raises:
        ConfigError: A number is out of range.
    """

    receipts: str
    pool: Pool
    judges: Pool
    versions: str
    limits: BudgetLimits
    encoder: str = "minilm"
    recipe: Recipe | None = None
    rubric: str = RUBRIC
    form: Form = "rubric"
    pattern: str | None = None
    function: str | None = None
    run_tests: bool = False
    labelling: LabellingSettings = field(default_factory=LabellingSettings)
    least: int = 50
    anchors_every: int = 100
    sources: EncoderSources = field(default_factory=EncoderSources)
    cache: Path | None = None

    def __post_init__(self) -> None:
        if self.least < 2:
            raise ConfigError(f"the fewest labels to fit on are {self.least}; give 2 or more")
        if self.anchors_every < 0:
            raise ConfigError(f"anchors_every is {self.anchors_every}; give 0 or more requests")


@final
@dataclass(frozen=True, kw_only=True)
class LearningRound:
    """What one round did.

    Attributes:
        labelling: What was asked and graded.
        labels: The number of labels in the dataset, by source.
        version: The version that was added; None where none was.
        verdict: The verdict on it, as a sentence; empty without a version.
        word: The verdict's word; empty without a version.
        is_candidate: Whether it became the candidate.
        note: Why there is no version, or why it isn't the candidate; empty where it is.
        step: What became of the earlier candidate, or of what serves; None where there was none.
        changes: What changed, as it was noticed in this round.
        followed: The version that serves because of changes; None where none began to.
    """

    labelling: LabellingRound
    labels: Mapping[str, int] = field(default_factory=dict, hash=False)
    version: str | None = None
    verdict: str = ""
    word: str = ""
    is_candidate: bool = False
    note: str = ""
    step: CandidateStep | None = None
    changes: tuple[RecordedChange, ...] = ()
    followed: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        labelling = {
            **vars(self.labelling),
            "answers": dict(self.labelling.answers),
            "labels": dict(self.labelling.labels),
            "sources": {name: source.to_dict() for name, source in self.labelling.sources.items()},
            "notes": list(self.labelling.notes),
        }
        step = None if self.step is None else {**vars(self.step), **vars(self.step.decision)}
        if step is not None:
            del step["decision"]
        changes = [{**vars(change), "evidence": dict(change.evidence)} for change in self.changes]
        mappings = {
            "labels": dict(self.labels),
            "labelling": labelling,
            "step": step,
            "changes": changes,
        }
        return {**vars(self), **mappings}


def learn(
    settings: LearnerSettings,
    *,
    share: float = 1.0,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.time,
) -> LearningRound:
    """Ask and grade what isn't yet, and fit a version if there are enough new labels.

    Args:
        settings: What to work with.
        share: Of what the budget has left, how much may be spent in this round.
        progress: Shows the progress.
        clock: Returns the time in seconds since 1970.

    Raises:
        ConfigError: Another learner works on the database or the versions, or a setting is wrong.
        StoreError: The database can't be used.
    """
    progress = progress or SilentProgress()
    registry = VersionRegistry.at(settings.versions)
    open_store(settings.receipts, create=False).close()  # a wrong name makes no new database
    with _lock_out_others(settings, registry), closing(open_learning(settings.receipts)) as store:
        checks = _make_checks(settings, store, registry, clock)
        labelling = _make_labelling(settings, store, checks.pool, clock)
        labelling_round = labelling.run_round(
            share=share, anchors=checks.due_anchors, progress=progress
        )
        changes = checks.record_changes()
        day = datetime.fromtimestamp(clock(), UTC).date().isoformat()
        followed = follow_changes(
            registry, checks.changes, checks.pool, charged=checks.repriced_targets, day=day
        )
        trial = CandidateTrial(
            receipts=settings.receipts,
            pool=checks.pool,
            registry=registry,
            errors=labelling_round.errors,
            states=partial(_gather_states, settings, progress=progress),
            sources=settings.sources,
            since=checks.since,
        )
        step = trial.step(progress)
        outcome = _fit_if_due(settings, registry, labelling_round, checks, progress)
        return replace(outcome, step=step, changes=changes, followed=followed)


def _make_checks(
    settings: LearnerSettings,
    store: Database,
    registry: VersionRegistry,
    clock: Callable[[], float],
) -> TargetChecks:
    return TargetChecks(
        settings.receipts,
        store,
        settings.pool,
        registry,
        every=settings.anchors_every,
        is_graded=settings.form == "rubric",
        clock=clock,
    )


def _make_labelling(
    settings: LearnerSettings, store: Database, pool: Pool, clock: Callable[[], float]
) -> Labelling:
    return Labelling(
        settings.receipts,
        store,
        pool,
        AnswerJudges(settings.judges, rubric=settings.rubric, form=settings.form, clock=clock),
        verifiers=Verifiers(
            pattern=settings.pattern, function=settings.function, tests=settings.run_tests
        ),
        budget=LearningBudget(store, settings.limits, clock=clock),
        settings=settings.labelling,
        clock=clock,
    )


@contextmanager
def _lock_out_others(settings: LearnerSettings, registry: VersionRegistry) -> Iterator[None]:
    """Refuse a second learner on the same database or versions, where these are files here."""
    with ExitStack() as locks:
        for place in (file_of(settings.receipts), registry.place):
            if isinstance(place, Path):
                path = place.absolute()
                lock = writer_lock(path.parent, f"{path.name}.learner", wait=False)
                if not locks.enter_context(lock):
                    raise ConfigError(
                        f"another learner works on {path}; wait for its end, or stop it"
                    )
        yield


def _fit_if_due(
    settings: LearnerSettings,
    registry: VersionRegistry,
    labelling: LabellingRound,
    checks: TargetChecks,
    progress: Progress,
) -> LearningRound:
    try:
        dataset_export = export(
            current_scores(scored_receipts(settings.receipts), checks.since),
            pool=checks.pool,
            samples=current_samples(labelled_samples(settings.receipts), checks.since),
            turns=turns_by_request(settings.receipts),
            errors=labelling.errors,
        )
    except DataError as error:
        return LearningRound(labelling=labelling, note=str(error))
    labels, targets = (
        dict(dataset_export.sources),
        _labelled_targets(dataset_export.dataset, settings.least),
    )
    state = registry.state()
    last = sum(state.versions[-1].labels.values()) if state.versions else 0
    more = _MORE if state.candidate is None else _MORE_THAN_TRIED
    if len(targets) < 2:
        note = f"fewer than two targets have {settings.least} labels"
        return LearningRound(labelling=labelling, labels=labels, note=note)
    if sum(labels.values()) < more * last and not fit_is_due(state, checks.changes):
        note = f"{sum(labels.values()):,} labels, {last:,} at the last version; waiting for more"
        return LearningRound(labelling=labelling, labels=labels, note=note)
    try:
        dataset = dataset_export.dataset.select(targets=targets)
        return _add_version(
            settings, registry, labelling, checks, dataset_export, dataset, progress
        )
    except (DataError, FitError) as error:
        return LearningRound(labelling=labelling, labels=labels, note=str(error))


def _labelled_targets(dataset: RoutingDataset, least: int) -> list[str]:
    """The targets that have enough labels in the part that is fitted on."""
    older = dataset.correct[: round(FRACTIONS["train"] * len(dataset))]
    counts = (~np.isnan(older)).sum(axis=0)
    return [name for name, count in zip(dataset.pool.names, counts, strict=True) if count >= least]


def _add_version(
    settings: LearnerSettings,
    registry: VersionRegistry,
    labelling: LabellingRound,
    checks: TargetChecks,
    dataset_export: DatasetExport,
    dataset: RoutingDataset,
    progress: Progress,
) -> LearningRound:
    """Fit on older traffic, judge it by cross-fitting and on the newest, and add the version."""
    states = _gather_states(settings, dataset, progress=progress)
    folds = split_by_time(dataset, fractions=FRACTIONS)
    fitted = _fit(settings, dataset, states, folds, progress)
    current, verdict = registry.state().current, fitted.verdict
    test = dataset.select(folds["test"])
    comparison: dict[str, Any] = {}
    is_worse = False
    if current is not None:
        running = Router.load(registry.router(current), sources=settings.sources)
        gains, is_worse = _compare_to_running(fitted, running, test, states, progress)
        comparison = {"running": current, **gains} if gains else {}
    name = registry.add(
        fitted.router,
        {
            "data": dataset.fingerprint,
            "labels": dict(dataset_export.sources),
            "traffic": dataset_export.times,
            "verdict": None if verdict is None else {**verdict.to_dict(), **comparison},
            "notes": tuple(source_words(labelling)),
            "changes": tuple(change.id for change in checks.changes),
            "charged": checks.repriced_targets,
        },
    )
    word, reason = ("can't tell", "") if verdict is None else (verdict.word, verdict.because)
    is_candidate = word == "worth it" and not is_worse
    if is_candidate:
        registry.shadow(name)
    why_not = f"surely less accurate than {current}, and no cheaper" if is_worse else word
    return LearningRound(
        labelling=labelling,
        labels=dict(dataset_export.sources),
        version=name,
        verdict=reason,
        word=word,
        is_candidate=is_candidate,
        note="" if is_candidate else why_not,
    )


def _compare_to_running(
    fitted: RouterFit,
    running: Router,
    test: RoutingDataset,
    states: Activations,
    progress: Progress,
) -> tuple[dict[str, Any], bool]:
    """The gains over the version that runs, and whether the new one is surely worse.

    Nothing is compared where the running version has targets without outcomes.
    """
    if not set(running.pool.names) <= set(test.pool.names):
        return {}, False
    accuracy, cost = gain_over(fitted, running, test, [states], progress)
    gains = {"accuracy": accuracy.to_dict(), "cost": cost.to_dict()}
    return gains, accuracy.upper < 0 and not cost.upper < 0


def _fit(
    settings: LearnerSettings,
    dataset: RoutingDataset,
    states: Activations,
    folds: Split,
    progress: Progress,
) -> RouterFit:
    recipe, config = settings.recipe, FitConfig(setting=SettingRule(lose=_LOSE))
    options: dict[str, Any] = {
        "split": folds,
        "sources": settings.sources,
        "verdict": True,
        "progress": progress,
    }
    if recipe is None:
        fitted, _ = fit_chosen(dataset, [states], effort="quick", config=config, **options)
        return fitted
    return fit_router(dataset, [states], config=replace(config, recipe=recipe), **options)


def _gather_states(
    settings: LearnerSettings, dataset: RoutingDataset, *, progress: Progress
) -> Activations:
    """The states of a dataset, from the cache as far as it has them."""
    need, sources, cache = Need(settings.encoder), settings.sources, settings.cache
    (states,) = gather([need], dataset, (), sources=sources, cache=cache, progress=progress)
    return states


def gain_over(
    fitted: RouterFit,
    running: Router,
    test: RoutingDataset,
    states: Any,
    progress: Progress,
) -> tuple[Estimate, Estimate]:
    """The accuracy and mean cost of a fitted router minus those of the running one.

    Both decide at the lam that was chosen for them on their own train rows.

    Args:
        fitted: The fitted router.
        running: The router that serves.
        test: The newest traffic, which neither was fitted on.
        states: Its states.
        progress: Shows the progress.
    """
    trials = []
    for router in (fitted.router, running):
        predictions = router.predict(test, stores=states, progress=progress)
        trial = Trial.join(predictions, test, policy=router.policy)
        trials.append((trial, trial.path.at(router.setting)))
    (new, new_choice), (old, old_choice) = trials
    bootstrap = Bootstrap(len(test), _RESAMPLES, 0, len(test), test.conversations)

    def difference(table: str) -> Estimate:
        first = new.of_choice(getattr(new, table), new_choice)
        second = old.of_choice(getattr(old, table), old_choice)
        off = np.where(np.isnan(first) | np.isnan(second), np.nan, first - second)
        has_both = ~np.isnan(off)
        return bootstrap.estimate(
            lambda weights: mean_over(weights * has_both, off), "no outcome of both is known"
        )

    return difference("correct"), difference("paid")
