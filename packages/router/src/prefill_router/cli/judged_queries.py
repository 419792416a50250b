"""The queries of a dataset that a router is judged on, and its predictions for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from prefill_router.cli.application import err
from prefill_router.cli.commands import parse_choice
from prefill_router.cli.options import check_part, predict
from prefill_router.errors import ConfigError, DataError

if TYPE_CHECKING:
    from prefill_router.activations import Activations
    from prefill_router.data import Part, RoutingDataset
    from prefill_router.evaluation import (
        Axis,
        Evaluation,
        JudgedPart,
        References,
        Trial,
        WinVerdict,
    )
    from prefill_router.policy import Predictions
    from prefill_router.progress import Progress
    from prefill_router.router import Router

CROSS_FIT = "cross-fit"
PARTS = (CROSS_FIT, "test", "calibration", "unseen")
ALL_PARTS = (*PARTS, "train", "all")


def check_part_name(part: str | None, among: Sequence[str] = PARTS) -> None:
    """Check a value of --part, before anything is read."""
    if part is not None:
        parse_choice("--part", part, among)


_VOTES_AND_SCORES = {
    False: (
        "the labels are votes between two answers, and the router learned from labels that say how "
        "good each answer is; fit a router on votes to judge it in win rate"
    ),
    True: (
        "the router learned from votes, so it predicts chances to win and none to be right; judge "
        "it on votes"
    ),
}
"""Why a router can't be judged on labels of another kind, by whether it learned from votes."""
_WHOLE = "to take every query that the router wasn't fitted on, say --part unseen"


@final
@dataclass(frozen=True, eq=False)
class JudgedQueries:
    """A dataset at the router's prices and with its targets, in two parts.

    Attributes:
        router: The router.
        part: Which queries it is judged on, one of `ALL_PARTS`.
        judged: These queries.
        train: The queries of the dataset that the router was fitted on; None without any.
    """

    router: "Router"
    part: str
    judged: "RoutingDataset"
    train: "RoutingDataset | None"

    @classmethod
    def of(
        cls,
        router: "Router",
        whole: "RoutingDataset",
        part: str | None = None,
    ) -> "JudgedQueries":
        """Select both parts from a dataset.

        Args:
            router: The router, with the split that it was fitted on.
            whole: Scored answers.
            part: `cross-fit`, every query that it was fitted on, predicted by routers that were
                fitted without it. `test` or `calibration` of its split. Or `unseen`, every query
                that shares no prompt and no conversation with those that it was trained or
                calibrated on. By default the first that there is of `test`, `cross-fit` and
                `unseen`.

        Raises:
            ConfigError: The router has no such part, or it was calibrated on it.
            DataError: The dataset lacks queries of the part, or has no unseen query; or its labels
                are votes and the router didn't learn from votes, or the other way round.
        """
        if whole.meaning.is_vote != router.is_voted:
            raise DataError(_VOTES_AND_SCORES[router.is_voted])
        lacking = sorted(set(router.pool.names) - set(whole.pool.names))
        if lacking:
            raise DataError(
                f"the dataset lacks the router's targets {lacking}; it has {whole.pool.names}"
            )
        priced = whole.select(targets=router.pool.names).with_pool(router.pool)
        ids = set(whole.query_ids)
        trained = [i for i in router.split["train"] if i in ids]
        train = priced.select(trained) if trained else None
        name = _default_part(router, ids) if part is None else part
        if trained and len(trained) < len(router.split["train"]):
            err.print(
                f"note: the dataset has {len(trained):,} of the {len(router.split['train']):,} "
                "queries that the router was fitted on"
            )
        return cls(router, name, priced.select(_find_judged(router, priced, name)), train)

    @property
    def words(self) -> str:
        """The part in a few words, for titles and reports."""
        if self.part == CROSS_FIT:
            return "all queries that it was fitted on, each judged by a router that didn't see it"
        return f"{self.part} part"

    def predict(self, stores: "Sequence[Activations]", progress: "Progress") -> "Predictions":
        """The predictions for the judged queries, in their order."""
        crossed = self.router.cross_fit
        if self.part == CROSS_FIT and crossed is not None:
            return crossed.comparable_predictions.select(self.judged.query_ids)
        return predict(self.router, self.judged, stores, progress)

    def evaluate(
        self,
        stores: "Sequence[Activations]",
        progress: "Progress",
        *,
        resamples: int = 1000,
        seed: int = 0,
        step: float | None = None,
        axis: "Axis" = "inverse",
    ) -> "Evaluation":
        """Evaluate the router on the judged queries; the options are those of `evaluate`."""
        from prefill_router.evaluation import Trial, evaluate

        predictions, policy = self.predict(stores, progress), self.router.policy
        result = evaluate(
            predictions,
            self.judged,
            policy=policy,
            resamples=resamples,
            seed=seed,
            step=step,
            axis=axis,
            chosen=None if self.part == CROSS_FIT else self.router.record.chosen,
            progress=progress,
        )
        parts = self.judged_parts(Trial.join(predictions, self.judged, policy=policy))
        if not parts:
            return result
        known = None if self.part == CROSS_FIT else result.headline["choice_auc"]
        return result.with_parts(parts, lam=self.router.setting, choice_auc=known)

    def judge_votes(self, stores: "Sequence[Activations]", progress: "Progress") -> "WinVerdict":
        """Judge a router that learned from votes in win rate.

        Raises:
            DataError: The router learned from some of these votes, or has nothing to be compared
                with.
        """
        from prefill_router.evaluation import judge_votes
        from prefill_router.fitting import part_of_votes, parts_out_of_fold

        crossed = self.router.cross_fit
        if self.part == CROSS_FIT and crossed is not None:
            return judge_votes(parts_out_of_fold(crossed, self.judged))
        if self.train is not None and set(self.train.query_ids) & set(self.judged.query_ids):
            raise DataError(
                "the router learned from some of these votes, so its win rate on them says "
                "nothing; judge it with --part cross-fit, or on new votes"
            )
        part = part_of_votes(self.router, self.judged, stores, progress=progress)
        return judge_votes([part])

    def judged_parts(self, trial: "Trial", *, lam: float | None = None) -> "list[JudgedPart]":
        """The judged queries with what they are compared with; none where that isn't known.

        Args:
            trial: The predictions of `predict` with the labels of the judged queries.
            lam: A setting to judge it at; its own if not given.
        """
        from prefill_router.evaluation import JudgedPart

        crossed = self.router.cross_fit
        if self.part == CROSS_FIT and crossed is not None:
            return crossed.judged_parts(self.judged, policy=self.router.policy, lam=lam)
        if self.train is not None and set(self.train.query_ids) & set(self.judged.query_ids):
            err.print("note: there is no verdict: the router learned from some of these queries")
            return []
        references = self._find_references()
        if references is None:
            err.print(
                "note: there is no verdict: the router has no references to be compared with, and "
                "the dataset has none of the queries that it was fitted on"
            )
            return []
        return [JudgedPart(trial, references, self.router.record.chosen, lam)]

    def _find_references(self) -> "References | None":
        """Those of the router's fit; else learned from the train rows that the dataset has."""
        from prefill_router.evaluation import References
        from prefill_router.progress import SilentProgress

        references = self.router.references
        if references is not None or self.train is None:
            return references
        predicted = predict(self.router, self.train, (), SilentProgress())
        return References.fit(self.train, predicted.normalised_cost)


def _default_part(router: "Router", ids: set[str]) -> str:
    if "test" in router.split.parts:
        return "test" if ids & set(router.split["test"]) else "unseen"
    crossed = router.cross_fit
    is_there = crossed is not None and bool(ids & set(crossed.predictions.query_ids))
    return CROSS_FIT if is_there else "unseen"


def _find_judged(router: "Router", dataset: "RoutingDataset", part: str) -> Sequence[str]:
    """The ids of the judged queries."""
    from prefill_router.data import find_unseen

    if part == CROSS_FIT:
        return _cross_fitted(router, dataset)
    if part == "calibration" and router.calibrator is not None:
        raise ConfigError(
            "the router's calibrator was fitted on the calibration part, so the router can't "
            "be judged on it; give new queries with --part unseen"
        )
    named: tuple[Part, ...] = ("test", "calibration", "train")
    for name in named:
        if name == part:
            check_part(dataset, router.split[name], part, fix=_WHOLE)
            return router.split[name]
    learned_ids = {i for name in named[1:] for i in router.split.parts.get(name, ())}
    if part == "all":
        trained = len(learned_ids & set(dataset.query_ids))
        if trained:
            err.print(f"note: the router was fitted on {trained:,} of these queries")
        return dataset.query_ids
    ids = find_unseen(dataset, learned_ids)
    if not ids:
        raise DataError(
            "the router was fitted on every query of the dataset, or on its conversation, "
            "and it has no predictions out of fold for them: it was fitted with --no-verdict, "
            "or its prices or targets changed since. Give it new queries, or fit it again"
        )
    return ids


def _cross_fitted(router: "Router", dataset: "RoutingDataset") -> Sequence[str]:
    if router.cross_fit is None:
        raise ConfigError(
            "the router has no predictions out of fold: it was fitted with --no-verdict, or "
            "its prices or targets changed since; judge it on new queries with --part unseen, "
            "or fit it again"
        )
    dataset_ids = set(dataset.query_ids)
    ids = [name for name in router.cross_fit.predictions.query_ids if name in dataset_ids]
    if not ids:
        raise DataError(
            "the dataset has none of the queries that the router was fitted on; give the dataset "
            "that it was fitted on, or judge it on new queries with --part unseen"
        )
    return ids
