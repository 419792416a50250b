"""Fits the routers of a plan and judges them on the same test queries."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict, final

import numpy as np

from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset
from prefill_router.errors import FitError
from prefill_router.evaluation import Evaluation, Predictions, evaluate, paired
from prefill_router.evaluation.evaluation import Estimates
from prefill_router.fitting import FitConfig
from prefill_router.policy import Lambda
from prefill_router.predictors import Examples
from prefill_router.progress import Progress, SilentProgress
from prefill_router.reports.compare.plan import CONSTANT, Plan
from prefill_router.studies.fitted import Failed, Fitted, fit_all


@final
@dataclass(frozen=True, eq=False)
class Judged:
    """One router of a comparison.

    Attributes:
        name: What the plan calls it.
        fitted: It, and what the fit took.
        evaluation: On the test part, by itself.
        headline: Its numbers among the others; AIQ and the like depend on who is compared.
        against: It minus the reference, paired; nothing for the reference itself.
        over_constant: It minus the constant predictor, paired.
    """

    name: str
    fitted: Fitted
    evaluation: Evaluation
    headline: Estimates
    against: Estimates
    over_constant: Estimates


@final
@dataclass(frozen=True, eq=False)
class Result:
    """What came of a plan.

    Attributes:
        plan: It.
        routers: The routers that could be fitted, in the plan's order.
        failed: The others.
    """

    plan: Plan
    routers: tuple[Judged, ...]
    failed: tuple[Failed, ...]

    @property
    def by_name(self) -> dict[str, Judged]:
        """The routers by name."""
        return {one.name: one for one in self.routers}

    @property
    def beaten_by_constant(self) -> list[str]:
        """The routers that aren't surely better than the constant predictor."""
        return [one.name for one in self.routers if not beats(one.over_constant)]


def beats(over: Estimates) -> bool:
    """Whether AUC and Brier score are better, with intervals that exclude 0."""
    return over["auc_mean"].lower > 0 and over["brier_mean"].upper < 0


def run_plan(
    plan: Plan,
    dataset: RoutingDataset,
    states: Sequence[Activations],
    *,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """Fit every router on the train part, and then judge all of them on the test part.

    Args:
        plan: What is compared.
        dataset: Scored answers.
        states: What the features read, see `fitting.gather`.
        folder: Keeps each router as soon as it is fitted; interrupted, the work goes on from there.
        progress: Shows how far it is.

    Raises:
        FitError: The reference can't be fitted.
    """
    shown = progress or SilentProgress()
    fitted, failed = fit_all(
        dataset,
        plan.recipes,
        states,
        plan.drawn,
        calibrated=plan.calibrated,
        config=FitConfig(seed=plan.seed),
        folder=folder,
        progress=shown,
    )
    lost = [one.why for one in failed if one.name == plan.reference]
    if lost:
        raise FitError(f"the reference {plan.reference!r} can't be fitted: {lost[0]}")
    return Result(plan, _judged(plan, fitted, dataset, states, shown), tuple(failed))


def _judged(
    plan: Plan,
    fitted: Sequence[Fitted],
    dataset: RoutingDataset,
    states: Sequence[Activations],
    progress: Progress,
) -> tuple[Judged, ...]:
    """Every router on the test part."""
    test = dataset.select(plan.drawn["test"])
    systems = {
        one.name: (one.router.predict(test, stores=states), one.router.policy) for one in fitted
    }
    train = dataset.select(plan.drawn["train"])
    chosen = {one.name: one.router.record.chosen for one in fitted}
    constant = _constant(train, systems[plan.reference][0])
    together, over = (
        paired(among, test, reference=against, chosen=chosen, progress=progress, **_drawing(plan))
        for among, against in (
            (systems, plan.reference),
            ({**systems, CONSTANT: (constant, Lambda())}, CONSTANT),
        )
    )
    judged = []
    with progress.task("judging", total=float(len(fitted))) as advance:
        for one in fitted:
            predictions, policy = systems[one.name]
            alone = evaluate(
                predictions,
                test,
                policy=policy,
                chosen=chosen[one.name],
                train=train,
                **_drawing(plan),
            )
            against = together.difference.get(one.name, {})
            numbers = together.headline[one.name]
            judged.append(Judged(one.name, one, alone, numbers, against, over.difference[one.name]))
            advance(note=one.name)
    return tuple(judged)


class _Drawing(TypedDict):
    resamples: int
    seed: int


def _drawing(plan: Plan) -> _Drawing:
    return {"resamples": plan.resamples, "seed": plan.seed}


def _constant(train: RoutingDataset, like: Predictions) -> Predictions:
    """Each target's share of right answers, for every query, at the same estimated costs."""
    rates = Examples(
        np.zeros((len(train), 1), dtype=np.float32),
        train.correct,
        train.pool.names,
        ("",) * len(train),
    ).base_rates
    return replace(like, correctness=np.tile(rates, (len(like), 1)))
