"""What a fit tries by itself: a few recipes, of which cross-validation on train rows takes one.

The recipes need no tuning. One reads several layers of each encoder in a block, one the mean and
the last token of a single layer. Both add the labels of neighbours, and have a network that also
learns how difficult a query is and what parts the targets. The third is the paper's router.
Choosing needs data: below `ENOUGH` train rows the differences between recipes are smaller than
their noise, and the paper's is taken. From votes one recipe learns, whatever the effort.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, final, get_args

import numpy as np

from prefill_router.activations import Activations, Site
from prefill_router.data import RoutingDataset, Split
from prefill_router.errors import ConfigError, FitError
from prefill_router.fitting.fit import FitJudge, RouterFit, draw, learn
from prefill_router.fitting.fold_scores import (
    FoldScore,
    FoldScorer,
    TrainOnly,
    answer,
)
from prefill_router.fitting.objectives import MARGINS, Objective
from prefill_router.fitting.recipe import FitConfig, Recipe, recipe_from_dict
from prefill_router.fitting.votes import VOTES, adapt_to_votes, vote_recipe
from prefill_router.layers import candidate_sites
from prefill_router.progress import Progress, SilentProgress
from prefill_router.router import EncoderSources, Router

Effort = Literal["quick", "normal", "best"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)
PAPER = "paper"
ENOUGH = 1000
"""The train rows from which on recipes are tried."""
MINUTES: Mapping[Effort, float] = {"quick": 0, "normal": 1.5, "best": 20}
"""The time after which no other fold is started."""
_FOLDS = 3
_WIDEST = 2400  # dimensions of a block; the time of a PCA grows with their cube
_DEPTH = 0.6  # of the layer in whose space neighbours are searched
_NETWORK = {"kind": "unified_multitask", "pairs": 0.5, "seeds": 8}
_STACK = {"kind": "stack", "members": [_NETWORK, {"kind": "shared_trunk"}, {"kind": "logistic"}]}


@final
@dataclass(frozen=True)
class EffortTrial:
    """One recipe that was tried.

    Attributes:
        name: Its name.
        scores: Its scores on the folds, as many as were computed.
        why: Why it was given up, if it was.
    """

    name: str
    scores: tuple[FoldScore, ...] = ()
    why: str = ""

    def mean(self, metric: Objective, folds: int | None = None) -> float:
        """The mean of a metric over the first folds, or all."""
        return float(np.mean([score.of(metric) for score in self.scores[:folds]]))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the router's record."""
        objectives: tuple[Objective, ...] = ("choice", "auc", "brier") if self.scores else ()
        means: dict[str, Any] = {name: round(self.mean(name), 4) for name in objectives}
        return {"recipe": self.name, **means, "why": self.why}


@final
@dataclass(frozen=True)
class EffortChoice:
    """The recipe to fit.

    Attributes:
        name: Its name.
        recipe: The recipe.
        trials: What was tried; empty where nothing was.
        why: Why nothing was tried, to follow a comma; empty where something was.
    """

    name: str
    recipe: Recipe
    trials: tuple[EffortTrial, ...] = ()
    why: str = ""

    @property
    def words(self) -> str:
        """What was tried and taken, for people."""
        if not self.trials:
            return f"the recipe is {self.name!r}; no other was tried, {self.why}"
        tried = ", ".join(_describe_trial(trial) for trial in self.trials)
        return f"the recipe {self.name!r} has the best choice AUC out of fold: {tried}"


def _describe_trial(trial: EffortTrial) -> str:
    if trial.why:
        return f"{trial.name} ({trial.why})"
    return f"{trial.name} {trial.mean('choice'):.4f}"


def choose_recipe(
    dataset: RoutingDataset,
    states: Sequence[Activations],
    split: Split,
    *,
    effort: Effort = "normal",
    minutes: float | None = None,
    enough: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> EffortChoice:
    """Take the recipe with the best choice AUC in a cross-validation on the train part.

    Args:
        dataset: The scored answers; only its train part is looked at.
        states: The states of its queries.
        split: The split.
        effort: `quick` tries nothing, `normal` three recipes, `best` larger ones.
        minutes: The time after which no other fold is started, by default that of the effort. Where
            it is over, the choice depends on how fast the machine is.
        enough: The train rows from which on recipes are tried; `ENOUGH` if not given.
        seed: The seed of folds and fits.
        progress: Shows the recipes done.

    Raises:
        ConfigError: The effort is unknown.
        FitError: No recipe can be fitted.
    """
    recipes = recipes_for(states, effort)
    if dataset.meaning.is_vote:
        return EffortChoice(VOTES, _recipe_for_votes(states), why="since votes have one recipe")
    train, needed = dataset.select(split["train"]), ENOUGH if enough is None else enough
    if len(train) < needed:
        why = f"since fewer than {needed:,} train queries don't tell recipes apart"
        return EffortChoice(PAPER, Recipe(), why=why)
    if len(recipes) == 1:
        return EffortChoice(*next(iter(recipes.items())), why="since --effort is quick")
    rows = TrainOnly(train, frozenset(split.parts.get("test", ())))
    scorer = FoldScorer(rows, tuple(states), _FOLDS, seed, "choice")
    limit = MINUTES[effort] if minutes is None else minutes
    until, trials = time.monotonic() + 60 * limit, list[EffortTrial]()
    with (progress or SilentProgress()).task("recipes", total=float(len(recipes))) as advance:
        for name, recipe in recipes.items():
            trials.append(_try_recipe(name, recipe, scorer, trials, until))
            advance(note=name)
    finished = [trial for trial in trials if len(trial.scores) == _FOLDS]
    if not finished and all(trial.why for trial in trials):
        raise FitError(f"no recipe could be fitted: {trials[0].why}")
    best = max(finished or trials, key=lambda trial: trial.mean("choice") if trial.scores else -1.0)
    return EffortChoice(best.name, recipes[best.name], tuple(trials))


def fit_chosen(
    dataset: RoutingDataset,
    stores: Sequence[Activations],
    *,
    effort: Effort = "normal",
    config: FitConfig | None = None,
    split: Split | None = None,
    sources: EncoderSources | None = None,
    cache: Path | None = None,
    verdict: bool | None = None,
    save: Callable[[Router], None] | None = None,
    progress: Progress | None = None,
) -> tuple[RouterFit, EffortChoice]:
    """Choose a recipe on the train part, fit it, and judge it.

    Args:
        dataset: The scored answers.
        stores: The states of its queries.
        effort: As for `choose_recipe`.
        config: The other options; the policy of its recipe is kept.
        split: As for `fitting.fit_router`; so are the others.
        sources: The paths of encoders, by name.
        cache: The folder where finished folds of the verdict are kept; in memory if not given.
        verdict: Whether it is judged by cross-fitting.
        save: Called with the router once it is fitted, before it is judged.
        progress: Shows the progress.

    Raises:
        DataError: As for `fitting.fit_router`; so are the others.
    """
    config, progress = replace(config or FitConfig(), effort=effort), progress or SilentProgress()
    adapt_to_votes(dataset, config)  # says what votes don't allow, before anything is fitted
    split = split or draw(dataset, config)
    router, choice = learn_chosen(dataset, stores, split, config=config, progress=progress)
    again = replace(config, test=0.0)

    def learn_fold(part: RoutingDataset) -> Router:
        enough = 0 if choice.trials else len(dataset) + 1  # as it was for all rows
        return learn_chosen(part, stores, draw(part, again), config=again, enough=enough)[0]

    judging = FitJudge(dataset, stores, config, learn_fold, cache, verdict)
    return judging.judge(router.with_sources(sources or EncoderSources()), save, progress), choice


def learn_chosen(
    dataset: RoutingDataset,
    states: Sequence[Activations],
    split: Split,
    *,
    config: FitConfig,
    enough: int | None = None,
    progress: Progress | None = None,
) -> tuple[Router, EffortChoice]:
    """Choose a recipe on the train part, by the effort of the options, and fit it.

    The arguments and errors are those of `fit_chosen` and `choose_recipe`.
    """
    effort = parse_effort(config.effort)
    choice = choose_recipe(
        *(dataset, states, split),
        effort=effort,
        enough=enough,
        seed=config.seed,
        progress=progress,
    )
    config = replace(config, recipe=replace(choice.recipe, policy=config.recipe.policy))
    router = learn(dataset, states, split, config=config, progress=progress)
    record = router.record
    added = {
        "notes": (choice.words, *record.notes),
        "training": {**record.training, "recipes": [trial.to_dict() for trial in choice.trials]},
    }
    return router.with_record(record.model_copy(update=added)), choice


def parse_effort(name: str | None) -> Effort:
    """The effort of a name; `normal` if none is given.

    Raises:
        ConfigError: It is unknown.
    """
    for effort in EFFORTS:
        if effort == (name or "normal"):
            return effort
    raise ConfigError(f"the effort is {name!r}; it must be one of {list(EFFORTS)}")


def _try_recipe(
    name: str, recipe: Recipe, scorer: FoldScorer, before: Sequence[EffortTrial], until: float
) -> EffortTrial:
    """Score a recipe fold by fold, until it fails, is far behind, or the time is over."""
    trial, light = EffortTrial(name), replace(recipe, predictor=recipe.predictor.lighter())
    finished = [other for other in before if len(other.scores) == _FOLDS]
    for fold in range(_FOLDS):
        if finished and time.monotonic() > until:
            return replace(trial, why="the time was over")
        score, _, why = answer(scorer, light, ("none",), fold)
        trial = replace(
            trial,
            scores=(*trial.scores, *score.values()),
            why=why,
        )
        leads = [other.mean("choice", fold + 1) for other in finished]
        if why or (leads and max(leads) - trial.mean("choice") > MARGINS["choice"]):
            return replace(trial, why=why or "it was far behind")
    return trial


def recipes_for(states: Sequence[Activations], effort: Effort) -> dict[str, Recipe]:
    """The recipes of an effort for these states, the most promising first.

    Raises:
        ConfigError: The effort is unknown.
    """
    if effort not in EFFORTS:
        raise ConfigError(f"the effort is {effort!r}; it must be one of {list(EFFORTS)}")
    layered = [store for store in states if any(site.pooling == "mean" for site in store.sites)]
    if not layered:
        return {PAPER: Recipe()}
    neighbours = [block for store in layered for block in _list_neighbours(store)]
    layers, layer = (
        [*(block for store in layered for block in blocks(store)), *neighbours]
        for blocks in (_all_layers, _one_layer)
    )
    predictor = _STACK if effort == "best" else _NETWORK
    plain: dict[str, dict[str, Any]] = {
        "layers": {"features": layers, "predictor": predictor},
        "layer": {"features": layer, "predictor": predictor},
        PAPER: {},
    }
    if effort == "quick":
        plain = {"layers": {"features": layers, "predictor": predictor}}
    return {name: recipe_from_dict(values) for name, values in plain.items()}


def _recipe_for_votes(states: Sequence[Activations]) -> Recipe:
    """The means of candidate layers, without neighbours' labels, and scores learned from votes."""
    layered = [store for store in states if any(site.pooling == "mean" for site in store.sites)]
    if not layered:
        return vote_recipe(Recipe())
    blocks = [block for store in layered for block in _all_layers(store)]
    return vote_recipe(recipe_from_dict({"features": blocks}))


def _all_layers(store: Activations) -> list[dict[str, Any]]:
    """The means of candidate layers of an encoder in one block: all, or evenly spread ones."""
    sites = candidate_sites(store, poolings=("mean",))
    count = min(len(sites), max(1, _WIDEST // store.provenance.hidden_size))
    middles = [round((part + 0.5) * len(sites) / count - 0.5) for part in range(count)]
    return [_describe_block(store, [sites[place] for place in middles], 200)]


def _one_layer(store: Activations) -> list[dict[str, Any]]:
    """The mean and the last token of one layer, a block each."""
    layer = _find_middle_layer(store)
    wanted = (Site(layer, "mean"), 200), (Site(layer, "last"), 100)
    return [_describe_block(store, [site], dim) for site, dim in wanted if site in store.sites]


def _describe_block(store: Activations, sites: Sequence[Site], dim: int) -> dict[str, Any]:
    name = store.provenance.encoder
    named = {name: [site.name for site in sites]}
    return {"kind": "joint", "encoders": [name], "sites": named, "dim": dim}


def _find_middle_layer(store: Activations) -> int:
    """The candidate layer nearest to a relative depth where little depends on the exact layer."""
    depth = _DEPTH * store.provenance.num_layers
    sites = candidate_sites(store, poolings=("mean",))
    return min(sites, key=lambda site: abs(site.layer - depth)).layer


def _list_neighbours(store: Activations) -> list[dict[str, Any]]:
    """The labels of neighbours in the spaces of a middle layer and of the last candidate."""
    last = candidate_sites(store, poolings=("mean",))[-1]
    sites = dict.fromkeys(
        [Site(_find_middle_layer(store), "mean"), Site(_find_middle_layer(store), "last"), last]
    )
    options = {"standardise": True, "kernel": "exponential", "smoothing": 3.0}
    return [
        {"kind": "neighbours", "encoder": store.provenance.encoder, "site": site.name}
        | options
        | {"statistics": ["weighted share"]}
        for site in sites
        if site in store.sites
    ]
