"""What a router loses on queries of a kind that it wasn't trained on.

The paper's appendix on domain shift: a router trained on some benchmarks or domains is tested on
others, beside a reference that was trained on all of them, on exactly the same test queries. A
shifted router also has less to learn from, so there is a second reference, trained on as many
queries as it; what is lost against that one is due to the shift alone.

All that is fitted, the layers and the costs included, is fitted anew in each arm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final, get_args

from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset, Split
from prefill_router.errors import ConfigError
from prefill_router.evaluation import Estimate, paired
from prefill_router.evaluation.bootstrap import Estimates
from prefill_router.fitting import FitConfig, Recipe
from prefill_router.progress import Progress, SilentProgress
from prefill_router.router import Router
from prefill_router.studies.recipe_fits import RecipeFailure, fit_all
from prefill_router.studies.shift_arms import Arm, Shift, ShiftArms, arms

ARMS: tuple[Arm, ...] = get_args(Arm)
Number = Literal["argmax_accuracy", "auc_mean", "brier_mean", "max_lam_accuracy"]
NUMBERS: tuple[Number, ...] = get_args(Number)
"""The paper's two, argmax accuracy and macro AUC, and two more."""


@final
@dataclass(frozen=True)
class ShiftResult:
    """One recipe in the three arms, on the same test queries.

    Attributes:
        name: The recipe's.
        numbers: By arm, then by number.
        loss: The shifted arm minus the reference, paired.
        loss_of_shift: The shifted arm minus the reference of equal size, paired.
    """

    name: str
    numbers: Mapping[Arm, Mapping[Number, Estimate]]
    loss: Mapping[Number, Estimate]
    loss_of_shift: Mapping[Number, Estimate]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        return {
            **{arm: _plain(numbers) for arm, numbers in self.numbers.items()},
            "shifted_minus_reference": _plain(self.loss),
            "shifted_minus_equal": _plain(self.loss_of_shift),
        }


@final
@dataclass(frozen=True)
class ShiftStudy:
    """What shifts cost.

    Attributes:
        shift: What was trained on and tested on.
        arms: The splits.
        routers: One per recipe that could be fitted in all arms, in the order given.
        failed: The others.
        resamples: How many resamples the intervals come from.
        seed: Of the training and the resamples.
    """

    shift: Shift
    arms: ShiftArms
    routers: tuple[ShiftResult, ...]
    failed: tuple[RecipeFailure, ...]
    resamples: int
    seed: int

    @property
    def queries(self) -> int:
        """How many queries are tested on."""
        return len(self.arms.splits["reference"]["test"])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            **self.shift.to_dict(),
            "trained_on": dict(self.arms.sizes),
            "tested_on": dict(self.arms.domains),
            "queries": self.queries,
            "resamples": self.resamples,
            "seed": self.seed,
            "routers": {one.name: one.to_dict() for one in self.routers},
            "failed": {one.name: one.why for one in self.failed},
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row per router, arm or difference, and number."""
        rows = []
        for one in self.routers:
            groups = {str(arm): numbers for arm, numbers in one.numbers.items()}
            groups["shifted minus reference"] = one.loss
            groups["shifted minus equal"] = one.loss_of_shift
            rows += [
                {
                    "router": one.name,
                    "what": what,
                    "number": number,
                    "value": estimate.value,
                    "lower": estimate.lower,
                    "upper": estimate.upper,
                }
                for what, numbers in groups.items()
                for number, estimate in numbers.items()
            ]
        return rows


def shift_study(
    dataset: RoutingDataset,
    recipes: Mapping[str, Recipe],
    states: Sequence[Activations],
    drawn: Split,
    shift: Shift,
    *,
    resamples: int = 1000,
    seed: int = 0,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> ShiftStudy:
    """Fit every recipe on what the shift trains on, and on two references.

    Args:
        dataset: Scored answers.
        recipes: By name.
        states: What their features read, see `fitting.gather`.
        drawn: The whole split; tested are queries of its test part alone.
        shift: What is trained on and tested on.
        resamples: Bootstrap resamples, the same for all arms.
        seed: Of the training, the draw of the equal reference and the resamples.
        folder: Keeps each router as soon as it is fitted; interrupted, the work goes on from there.
        progress: Shows how far it is.

    Raises:
        ConfigError: There is no recipe, or the shift names what the dataset lacks.
        DataError: Too few queries are left, or none of those that are tested on has a label.
    """
    if not recipes:
        raise ConfigError("there is no router; name at least one")
    shown, parts = progress or SilentProgress(), arms(dataset, drawn, shift, seed=seed)
    found, failed = list[ShiftResult](), list[RecipeFailure]()
    fitted: dict[Arm, dict[str, Router]] = {arm: {} for arm in ARMS}
    for arm in ARMS:
        routers, lost = fit_all(
            dataset,
            recipes,
            states,
            parts.splits[arm],
            config=FitConfig(seed=seed),
            folder=None if folder is None else folder / arm,
            progress=shown,
        )
        fitted[arm] = {one.name: one.router for one in routers}
        failed += [RecipeFailure(one.name, f"{arm}: {one.why}") for one in lost]
    test = dataset.select(parts.splits["reference"]["test"])
    for name in recipes:
        if all(name in fitted[arm] for arm in ARMS):
            of_arms = {arm: fitted[arm][name] for arm in ARMS}
            found.append(_judged(name, of_arms, test, states, resamples, seed, shown))
    return ShiftStudy(shift, parts, tuple(found), tuple(failed), resamples, seed)


def _judged(
    name: str,
    routers: Mapping[Arm, Router],
    test: RoutingDataset,
    states: Sequence[Activations],
    resamples: int,
    seed: int,
    progress: Progress,
) -> ShiftResult:
    systems = {
        str(arm): (router.predict(test, stores=states), router.policy)
        for arm, router in routers.items()
    }
    both = paired(
        systems, test, reference="shifted", resamples=resamples, seed=seed, progress=progress
    )
    return ShiftResult(
        name,
        {arm: _kept(both.headline[arm]) for arm in ARMS},
        {number: _negated(both.difference["reference"][number]) for number in NUMBERS},
        {number: _negated(both.difference["equal"][number]) for number in NUMBERS},
    )


def _kept(numbers: Estimates) -> dict[Number, Estimate]:
    return {number: numbers[number] for number in NUMBERS}


def _negated(one: Estimate) -> Estimate:
    """The difference the other way round."""
    value, lower, upper = (0.0 - end for end in (one.value, one.upper, one.lower))  # not -0.0
    return Estimate(value, lower, upper, one.undefined, one.reason)


def _plain(numbers: Mapping[Number, Estimate]) -> dict[str, Any]:
    return {number: estimate.to_dict() for number, estimate in numbers.items()}
