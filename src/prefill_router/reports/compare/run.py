"""Fits the routers of a plan and judges them on the same test queries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np

from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset
from prefill_router.errors import FitError
from prefill_router.evaluation import Comparison, Evaluation, Predictions, compare, evaluate
from prefill_router.fitting import FitConfig
from prefill_router.policy import Lambda, Policy
from prefill_router.predictors import Examples
from prefill_router.progress import Progress, SilentProgress
from prefill_router.reports.compare.plan import Plan
from prefill_router.studies.fitted import Failed, Fitted, fit_all


@final
@dataclass(frozen=True, eq=False)
class Judged:
    """One router of a comparison.

    Attributes:
        name: What the plan calls it.
        fitted: It, and what the fit took.
        evaluation: On the test part.
        against: It minus the reference, paired.
        over_constant: It minus the constant predictor, paired.
    """

    name: str
    fitted: Fitted
    evaluation: Evaluation
    against: Comparison
    over_constant: Comparison


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


def beats(over: Comparison) -> bool:
    """Whether AUC and Brier score are better, with intervals that exclude 0."""
    return over.difference["auc_mean"].lower > 0 and over.difference["brier_mean"].upper < 0


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
        config=FitConfig(seed=plan.seed),
        folder=folder,
        progress=shown,
    )
    lost = [one.why for one in failed if one.name == plan.reference]
    if lost:
        raise FitError(f"the reference {plan.reference!r} can't be fitted: {lost[0]}")
    test = dataset.select(plan.drawn["test"])
    predicted = {one.name: one.router.predict(test, stores=states) for one in fitted}
    constant = _constant(dataset.select(plan.drawn["train"]), predicted[plan.reference])
    judged = []
    with shown.task("judging", total=float(len(fitted))) as advance:
        for one in fitted:
            judged.append(_judge(one, predicted, constant, test, plan))
            advance(note=one.name)
    return Result(plan, tuple(judged), tuple(failed))


def _judge(
    one: Fitted,
    predicted: Mapping[str, Predictions],
    constant: Predictions,
    test: RoutingDataset,
    plan: Plan,
) -> Judged:
    mine, policy = predicted[one.name], one.router.policy

    def minus(other: Predictions, by: Policy) -> Comparison:
        return compare(
            mine, other, test, policies=(policy, by), resamples=plan.resamples, seed=plan.seed
        )

    return Judged(
        one.name,
        one,
        evaluate(mine, test, policy=policy, resamples=plan.resamples, seed=plan.seed),
        minus(predicted[plan.reference], plan.recipes[plan.reference].policy),
        minus(constant, Lambda()),
    )


def _constant(train: RoutingDataset, like: Predictions) -> Predictions:
    """Each target's share of right answers, for every query, at the same estimated costs."""
    rates = Examples(
        np.zeros((len(train), 1), dtype=np.float32),
        train.correct,
        train.pool.names,
        ("",) * len(train),
    ).base_rates
    return replace(like, correctness=np.tile(rates, (len(like), 1)))
