"""The plan and the result of a comparison of routers.

All routers of a plan share one split: they are fitted on its train part and judged on the same test
queries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, TypedDict, final

import numpy as np

from prefill_router.activations import Activations
from prefill_router.comparison.encoder_cost import Charge, count_tokens
from prefill_router.comparison.recipe_fits import RecipeFailure, RecipeFit, fit_all
from prefill_router.data import FRACTIONS, WITH_CALIBRATION, RoutingDataset, Split, split
from prefill_router.engines import Engine
from prefill_router.errors import ConfigError, FitError
from prefill_router.evaluation import HEADLINE, Estimates, Evaluation, evaluate, paired
from prefill_router.files import default_cache
from prefill_router.fitting import FitConfig, Recipe, read_installed_recipes, read_recipes
from prefill_router.policy import Lambda, Predictions
from prefill_router.predictors import Examples
from prefill_router.progress import Progress, SilentProgress
from prefill_router.short_repr import short_repr

CONSTANT = "(constant)"
"""The baseline that every router must beat: each target's accuracy on the train part."""
ALL = "all"
"""The name of the packaged list: every predictor that needs no download."""
_PACKAGED_LIST = files("prefill_router.comparison") / "all.yaml"


@final
@short_repr
@dataclass(frozen=True)
class ComparisonPlan:
    """Routers on one split.

    Attributes:
        recipes: The recipes by name.
        reference: The name of the router that the others are compared with.
        split: The split that all routers share.
        resamples: Bootstrap resamples of the test queries.
        seed: Random seed of fits and resamples.
        calibrated: The split of routers with a calibration, with the same test part; `split` if not
            given.
        prices: What the encoders of a router charge, by its name, US dollars per million tokens;
            part of what the router pays. The others pay their targets alone.
        left_out: The routers of the list that need a distribution that isn't installed.
    """

    recipes: Mapping[str, Recipe]
    reference: str
    split: Split
    resamples: int = 1000
    seed: int = 0
    calibrated: Split | None = None
    prices: Mapping[str, float] = field(default_factory=dict)
    left_out: tuple[RecipeFailure, ...] = ()

    def __post_init__(self) -> None:
        if self.calibrated is not None and self.calibrated["test"] != self.split["test"]:
            raise ConfigError(
                "the calibrated routers' split has another test part than the other routers' "
                "split; draw both splits with one seed"
            )
        if CONSTANT in self.recipes:
            raise ConfigError(
                f"a router is called {CONSTANT}, which is the baseline's name; "
                "give the router another name"
            )
        if self.resamples < 0 or self.seed < 0:
            raise ConfigError(
                f"{self.resamples} resamples and the seed {self.seed}; neither may be negative; "
                "1000 resamples are usual"
            )
        for failure in self.left_out:
            if failure.name == self.reference or failure.name in self.prices:
                raise ConfigError(
                    f"{failure.name} is left out: {failure.why}; install it with: "
                    f"pip install {failure.requirement}"
                )
        if self.reference not in self.recipes:
            raise ConfigError(
                f"the reference is {self.reference!r}; it must be a router of the list: "
                f"{list(self.recipes)}"
            )
        unknown = sorted(set(self.prices) - set(self.recipes))
        if unknown:
            raise ConfigError(
                f"an encoder's price is given for {', '.join(unknown)}; it must be for routers "
                f"of the list: {', '.join(self.recipes)}"
            )
        for price in self.prices.values():
            Charge(per_million_tokens=price)  # refuses what is no price

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON that identify this comparison."""
        return {
            "recipes": {name: recipe.to_dict() for name, recipe in self.recipes.items()},
            "reference": self.reference,
            "split": self.split.to_dict(),
            "resamples": self.resamples,
            "seed": self.seed,
            **({} if self.calibrated is None else {"calibrated": self.calibrated.to_dict()}),
            **({"encoder_prices": dict(self.prices)} if self.prices else {}),
        }


@final
@dataclass(frozen=True)
class RecipeList:
    """The recipes of a list.

    Attributes:
        recipes: The recipes by name.
        left_out: The others, which need a distribution that isn't installed.
    """

    recipes: Mapping[str, Recipe]
    left_out: tuple[RecipeFailure, ...] = ()


def recipes_of(config: str) -> RecipeList:
    """The routers of a YAML file, or those of the packaged list `all` that are installed.

    Raises:
        FormatError: The file is missing, malformed, or has unknown entries.
    """
    if config != ALL or Path(config).exists():
        return RecipeList(read_recipes(Path(config)))
    with as_file(_PACKAGED_LIST) as path:
        recipes, distributions = read_installed_recipes(path)
    left_out = [
        RecipeFailure(name, f"its predictor is in {distribution}", distribution)
        for name, distribution in distributions.items()
    ]
    return RecipeList(recipes, tuple(left_out))


def draw_for(recipes: Mapping[str, Recipe], dataset: RoutingDataset, *, seed: int) -> Split:
    """A split for all routers, with a calibration part if one of them is calibrated."""
    calibrated = any(recipe.calibration != "none" for recipe in recipes.values())
    return split(dataset, seed=seed, fractions=WITH_CALIBRATION if calibrated else FRACTIONS)


@final
@short_repr
@dataclass(frozen=True, eq=False)
class ComparedRouter:
    """One router of a comparison.

    Attributes:
        name: Its name in the plan.
        fit: The fitted router, and the duration of the fit.
        evaluation: Its evaluation on the test part.
        headline: Its metrics in the comparison; some, like AIQ, depend on the other routers.
        against: Its paired differences to the reference; empty for the reference itself.
        over_constant: Its paired differences to the constant predictor.
    """

    name: str
    fit: RecipeFit
    evaluation: Evaluation
    headline: Estimates
    against: Estimates
    over_constant: Estimates


@final
@short_repr
@dataclass(frozen=True, eq=False)
class ComparisonResult:
    """The result of a plan.

    Attributes:
        plan: The plan.
        routers: The routers that could be fitted, in the plan's order.
        failures: The other routers, each with the reason.
    """

    plan: ComparisonPlan
    routers: tuple[ComparedRouter, ...]
    failures: tuple[RecipeFailure, ...]

    @property
    def by_name(self) -> dict[str, ComparedRouter]:
        """The routers by name."""
        return {router.name: router for router in self.routers}

    @property
    def left_out(self) -> list[RecipeFailure]:
        """The routers that need a package that isn't installed."""
        return [failure for failure in self.failures if failure.requirement]

    @property
    def not_fitted(self) -> list[RecipeFailure]:
        """The routers that could not be fitted on these data."""
        return [failure for failure in self.failures if not failure.requirement]

    @property
    def beaten_by_constant(self) -> list[str]:
        """The routers that aren't significantly better than the constant predictor."""
        return [router.name for router in self.routers if not beats(router.over_constant)]


def beats(over: Estimates) -> bool:
    """Whether AUC and Brier score are better, with intervals that exclude 0."""
    return over["auc_mean"].lower > 0 and over["brier_mean"].upper < 0


def run_plan(
    plan: ComparisonPlan,
    dataset: RoutingDataset,
    states: Sequence[Activations],
    *,
    folder: Path | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> ComparisonResult:
    """Fit every router on the train part, and then judge all of them on the test part.

    Args:
        plan: The plan.
        dataset: Scored answers.
        states: Hidden states for the features, see `fitting.gather`.
        folder: Keeps each router once it is fitted, so that interrupted work can resume.
        engine: Where the fits run; in this process if not given.
        progress: Reports the progress of the work.

    Raises:
        FitError: The reference can't be fitted.
    """
    bar = progress or SilentProgress()
    fits, failed = fit_all(
        dataset,
        plan.recipes,
        states,
        plan.split,
        calibrated=plan.calibrated,
        config=FitConfig(seed=plan.seed),
        folder=folder,
        engine=engine,
        progress=bar,
    )
    reasons = [failure.why for failure in failed if failure.name == plan.reference]
    if reasons:
        raise FitError(f"the reference {plan.reference!r} can't be fitted: {reasons[0]}")
    judged = _judge_routers(plan, fits, dataset, states, bar)
    return ComparisonResult(plan, judged, (*plan.left_out, *failed))


def _judge_routers(
    plan: ComparisonPlan,
    fits: Sequence[RecipeFit],
    dataset: RoutingDataset,
    states: Sequence[Activations],
    progress: Progress,
) -> tuple[ComparedRouter, ...]:
    """The evaluation of every router on the test part."""
    test = dataset.select(plan.split["test"])
    systems = {
        fit.name: (fit.router.predict(test, stores=states), fit.router.policy) for fit in fits
    }
    train = dataset.select(plan.split["train"])
    chosen = {fit.name: fit.router.record.chosen for fit in fits}
    constant = _predict_constant(train, systems[plan.reference][0])
    fees = {
        fit.name: _charge_encoders(plan.prices[fit.name], fit, test, states, progress)
        for fit in fits
        if fit.name in plan.prices
    }
    compare = partial(
        paired,
        dataset=test,
        chosen=chosen,
        fees=fees,
        progress=progress,
        **_list_resampling_options(plan),
    )
    to_reference = compare(systems, reference=plan.reference)
    to_constant = compare({**systems, CONSTANT: (constant, Lambda())}, reference=CONSTANT)
    routers = []
    with progress.task("judging", total=float(len(fits))) as advance:
        for fit in fits:
            name, predictions = fit.name, systems[fit.name][0]
            evaluation = _evaluate_fit(plan, fit, predictions, test, fees.get(name))
            against = to_reference.difference.get(name, {})
            numbers, over_constant = to_reference.headline[name], to_constant.difference[name]
            routers.append(ComparedRouter(name, fit, evaluation, numbers, against, over_constant))
            advance(note=name)
    return tuple(routers)


def _evaluate_fit(
    plan: ComparisonPlan,
    fit: RecipeFit,
    predictions: Predictions,
    test: RoutingDataset,
    fee: Mapping[str, float] | None,
) -> Evaluation:
    """The evaluation of one router by itself; the fee is that of its encoder, by query id."""
    return evaluate(
        predictions,
        test,
        policy=fit.router.policy,
        chosen=fit.router.record.chosen,
        references=fit.router.references,
        fee=fee,
        **_list_resampling_options(plan),
    )


def _charge_encoders(
    price: float,
    fit: RecipeFit,
    dataset: RoutingDataset,
    states: Sequence[Activations],
    progress: Progress,
) -> dict[str, float]:
    """The cost of encoding by query id, US dollars."""
    tokens = count_tokens(
        fit.router, dataset, stores=states, cache=default_cache(), progress=progress
    )
    dollars = Charge(per_million_tokens=price).dollars(tokens)
    return dict(zip(dataset.query_ids, dollars.tolist(), strict=True))


class _Resampling(TypedDict):
    resamples: int
    seed: int


def _list_resampling_options(plan: ComparisonPlan) -> _Resampling:
    return {"resamples": plan.resamples, "seed": plan.seed}


def _predict_constant(train: RoutingDataset, like: Predictions) -> Predictions:
    """Predict each target's train accuracy for every query, at the same estimated costs."""
    rates = Examples(
        np.zeros((len(train), 1), dtype=np.float32),
        train.correct,
        train.pool.names,
        ("",) * len(train),
    ).base_rates
    return replace(like, correctness=np.tile(rates, (len(like), 1)))


def by_number(routers: Sequence[ComparedRouter], name: str) -> list[ComparedRouter]:
    """The routers from the best to the worst by one headline number."""
    sign = 1 if HEADLINE[name].better == "lower" else -1
    return sorted(routers, key=lambda router: _sort_last(sign * router.headline[name].value))


def _sort_last(value: float) -> float:
    return value if np.isfinite(value) else np.inf
