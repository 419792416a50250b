"""What differs where a router learns from votes.

A vote has the labels of two targets: 1 and 0, or a half each for a tie. So scores are learned from
differences within votes (`predictors.bradley_terry`). What presumes that labels say how good each
answer is takes no part: shrinkage, calibration, soft labels, and settings that trade accuracy for
cost. How much quality a dollar buys isn't in votes, so the router is used at lam 1, the most
probable winner.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset
from prefill_router.errors import DataError, FitError
from prefill_router.evaluation import FixedRanking, SettingRule, VotedPart
from prefill_router.fitting.recipe import FitConfig, Recipe
from prefill_router.policy import Cascade, FrugalCascade, OperatingPoints
from prefill_router.predictors import LogisticConfig, TrunkConfig, Votes
from prefill_router.progress import Progress
from prefill_router.router import CrossFit, Router
from prefill_router.statistics import learnable

VOTES: Final = "votes"
"""The name of the recipe for votes."""
_RULE: Final = (
    "the most probable winner: votes say who wins, and not how much quality a dollar buys"
)
_SETTINGS: Final = (SettingRule(), SettingRule(lose=None))
"""The default rule, and that of the goal `accuracy`: both mean the most probable winner."""


def adapt_to_votes(dataset: RoutingDataset, config: FitConfig) -> FitConfig:
    """The options of a fit on votes; unchanged where the labels are of single answers.

    The features and the policy of a recipe are kept. Its predictor becomes a logistic regression on
    votes.

    Args:
        dataset: The labels.
        config: The options.

    Raises:
        FitError: An option needs labels that say how good each answer is, or a query isn't a vote.
    """
    recipe = config.recipe
    learns_votes = isinstance(recipe.predictor, LogisticConfig) and recipe.predictor.votes
    if not dataset.meaning.is_vote:
        if learns_votes:
            raise FitError(
                "the recipe's predictor has votes: true, but the labels aren't votes; remove "
                "votes: true"
            )
        return config
    _check_votes(dataset)
    options = {
        "a calibration": recipe.calibration != "none",
        "soft labels": recipe.soft_labels is not None,
        "a probability that labels are wrong": _has_errors(dataset),
        f"the policy {recipe.policy.kind}": isinstance(recipe.policy, Cascade | FrugalCascade),
        "a limit on cost, or a goal other than accuracy,": config.setting not in _SETTINGS,
    }
    for what, is_asked in options.items():
        if is_asked:
            raise FitError(
                f"{what} needs labels that say how good each answer is, and these labels are "
                "votes; leave it out. A router that learned from votes uses lam 1, the most "
                "probable winner; to weigh costs, give route or serve another lam"
            )
    if not learns_votes and recipe.predictor != TrunkConfig():
        raise FitError(
            "only the predictor {kind: logistic, votes: true} learns from votes; name it in "
            "the recipe, or leave the predictor out"
        )
    return replace(config, recipe=vote_recipe(recipe))


def vote_recipe(recipe: Recipe) -> Recipe:
    """The recipe with a predictor that learns from votes."""
    predictor = recipe.predictor
    learns_votes = isinstance(predictor, LogisticConfig) and predictor.votes
    return replace(
        recipe,
        predictor=predictor if learns_votes else LogisticConfig(votes=True),
        shrinkage=False,
        operating_points=False,
    )


def _has_errors(dataset: RoutingDataset) -> bool:
    error = dataset.label_error
    return error is not None and bool((np.nan_to_num(error) > 0).any())


def _check_votes(dataset: RoutingDataset) -> None:
    try:
        votes = Votes.of(dataset.correct)
    except FitError as error:
        raise FitError(f"the labels should be votes, but {error}") from None
    if not len(votes):
        raise FitError("there is no vote with a winner or a tie; add votes")
    if not learnable(dataset.correct).any():
        raise FitError(
            "every target wins all of its votes or loses them all, so there is nothing to learn; "
            "add votes"
        )


def settle_votes(router: Router, train: RoutingDataset) -> Router:
    """The router with its setting, and with the ranking that its verdict compares it with."""
    ranking = FixedRanking.fit(train)
    chosen = OperatingPoints(accurate=1.0, thrifty=None, setting=1.0, best=ranking.best, rule=_RULE)
    update = {"references": ranking.to_dict(), "chosen": chosen}
    return router.with_record(router.record.model_copy(update=update))


def part_of_votes(
    router: Router,
    votes: RoutingDataset,
    stores: Sequence[Activations],
    *,
    progress: Progress | None = None,
) -> VotedPart:
    """Votes that a router didn't learn from, ready for `evaluation.judge_votes`.

    Args:
        router: The router.
        votes: The votes.
        stores: Stores of any encoders; missing states are encoded now.
        progress: Shows the progress of encoding.

    Raises:
        DataError: The router has no ranking: it didn't learn from votes, or its targets changed.
    """
    ranking = router.ranking
    if ranking is None:
        raise DataError("the router has no ranking to be compared with; fit it again on votes")
    predictions = router.predict(votes, stores=stores, progress=progress)
    return VotedPart(predictions, votes, ranking)


def parts_out_of_fold(crossed: CrossFit, votes: RoutingDataset) -> list[VotedPart]:
    """The votes of a cross-fit by fold, ready for `evaluation.judge_votes`.

    Args:
        crossed: Chances to win, each by a router that didn't see the vote.
        votes: The votes; those without a prediction are left out.
    """
    labelled_ids, parts = set(votes.query_ids), []
    for place, chosen in enumerate(crossed.choices):
        ids = [
            name
            for name, fold in zip(crossed.predictions.query_ids, crossed.fold, strict=True)
            if fold == place and name in labelled_ids
        ]
        if ids:
            ranking = FixedRanking.from_dict(chosen.references)
            parts.append(VotedPart(crossed.predictions.select(ids), votes.select(ids), ranking))
    return parts
