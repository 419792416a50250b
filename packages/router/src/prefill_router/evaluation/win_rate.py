"""Is a router that learned from votes worth using? A verdict in win rate.

A vote says which of two answers is better, and not whether either is right, so accuracy can't be
known. Instead, for each vote the router chooses the target with the higher chance to win. Its win
rate is how often the pick won. A tie is half a win (the win rate of pairs of RouteLLM, Ong and
others 2024). It is compared with the best fixed ranking: the strengths of a Bradley-Terry model
without features (Bradley and Terry 1952), learned from the same votes as the router. Votes that
judge are never those that it learned from. The difference is paired; several votes on one prompt
count as one observation in its error.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.data import RoutingDataset
from prefill_router.errors import DataError
from prefill_router.evaluation.bootstrap import Estimate, plain
from prefill_router.evaluation.operating_points import paired_mean
from prefill_router.evaluation.scores import worded
from prefill_router.evaluation.verdict import NORMAL, WORTH, Word, points
from prefill_router.money import dollars
from prefill_router.policy import Predictions
from prefill_router.predictors import Votes, fit_strengths
from prefill_router.short_repr import short_repr

PerVote = Float[NDArray[np.float64], " vote"]
_MOST_SHARES: Final = 5
"""How many targets the shares of the prompts are named for."""
_PER: Final = 1000
"""The number of prompts that a cost is given for."""


@short_repr
@final
@dataclass(frozen=True)
class FixedRanking:
    """Targets by how strong they are in votes, whatever the prompt.

    Attributes:
        targets: The targets' names.
        strengths: Their strengths, in log-odds against the average target.
    """

    targets: tuple[str, ...]
    strengths: tuple[float, ...]

    @classmethod
    def fit(cls, train: RoutingDataset) -> "FixedRanking":
        """Learn the strengths.

        Args:
            train: Votes: rows with the labels of two targets.

        Raises:
            FitError: A row isn't a vote.
        """
        strengths = fit_strengths(Votes.of(train.correct))
        return cls(train.pool.names, tuple(strengths.tolist()))

    @property
    def best(self) -> str:
        """The strongest target."""
        return self.targets[int(np.argmax(self.strengths))]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"targets": list(self.targets), "strengths": list(self.strengths)}

    @classmethod
    def from_dict(cls, value: Any) -> "FixedRanking":
        """The ranking of `to_dict`; KeyError, TypeError or ValueError where it isn't one."""
        return cls(tuple(map(str, value["targets"])), tuple(map(float, value["strengths"])))


@final
@dataclass(frozen=True, eq=False)
class VotedPart:
    """Votes that are judged by one router, and the ranking that was learned from its train rows.

    Attributes:
        predictions: Chances to win, by a router that didn't learn from these votes.
        dataset: The votes.
        ranking: What it is compared with.
    """

    predictions: Predictions
    dataset: RoutingDataset
    ranking: FixedRanking


@short_repr
@final
@dataclass(frozen=True)
class WinVerdict:
    """The verdict on a router that learned from votes.

    Attributes:
        word: The verdict in two or three words.
        because: The reason, as a sentence.
        votes: How many votes were judged.
        win_rate: How often the router's pick won, a tie being half a win.
        ranking_win_rate: The same of the best fixed ranking's pick.
        gain: The router's win rate minus the ranking's.
        differ: In how many votes their picks differ.
        best: The strongest target.
        shares: The share of the prompts for which each target has the highest chance to win.
        cost: The mean cost of the router's picks, US dollars; NaN where unknown.
        ranking_cost: The same of the ranking's picks.
        needed: About how many judged votes would decide what is open; 0 where nothing is.
        lam: The setting that was judged: 1, the most probable winner.
    """

    word: Word
    because: str
    votes: int
    win_rate: Estimate
    ranking_win_rate: float
    gain: Estimate
    differ: int
    best: str
    shares: dict[str, float]
    cost: float = math.nan
    ranking_cost: float = math.nan
    needed: int = 0
    lam: float = 1.0

    @property
    def lines(self) -> tuple[str, ...]:
        """More of the router, in up to three sentences."""
        sentences = [f"its pick differs from the fixed ranking's in {self.differ:,} votes"]
        shares = sorted(self.shares.items(), key=lambda pair: -pair[1])
        names = ", ".join(f"{name} for {worded(share, 'share')}" for name, share in shares if share)
        if len([share for _, share in shares if share]) > _MOST_SHARES:
            first = shares[:_MOST_SHARES]
            names = ", ".join(f"{name} for {worded(share, 'share')}" for name, share in first)
            names += f", others for {worded(1 - sum(share for _, share in first), 'share')}"
        sentences.append(
            f"among all targets it chooses {names} of the prompts; the ranking {self.best}"
        )
        if not math.isnan(self.cost + self.ranking_cost):
            sentences.append(
                f"its picks cost {dollars(_PER * self.cost)} per {_PER:,} prompts, the ranking's "
                f"{dollars(_PER * self.ranking_cost)}"
            )
        return tuple(sentences)

    @property
    def metrics(self) -> dict[str, Estimate]:
        """The numbers with their intervals, by name."""
        alone = Estimate(self.ranking_win_rate, math.nan, math.nan)
        return {"win_rate": self.win_rate, "ranking_win_rate": alone, "win_gain": self.gain}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "word": self.word,
            "because": self.because,
            "lam": self.lam,
            "votes": self.votes,
            "lines": list(self.lines),
            "win_rate": self.win_rate.to_dict(),
            "ranking_win_rate": plain(self.ranking_win_rate),
            "gain": self.gain.to_dict(),
            "picks_differ": self.differ,
            "best": self.best,
            "shares": self.shares,
            "mean_cost": plain(self.cost),
            "ranking_mean_cost": plain(self.ranking_cost),
            "votes_needed": self.needed,
        }


def judge_votes(parts: Sequence[VotedPart]) -> WinVerdict:
    """Compare a router's picks with those of the best fixed ranking, vote by vote.

    Args:
        parts: The judged votes; one part for each fold of a cross-validation.

    Raises:
        DataError: There is no vote between two of the router's targets.
    """
    rows = [_PartRows.of(part) for part in parts]
    router_labels, ranking_labels = (
        np.concatenate(side)
        for side in zip(*((part.router_labels, part.ranking_labels) for part in rows), strict=True)
    )
    if not len(router_labels):
        raise DataError("there is no vote between two of the router's targets; add votes")
    prompts = [prompt for part in rows for prompt in part.prompts]
    differences = router_labels - ranking_labels
    mean, error = paired_mean(differences, prompts)
    gain = _make_interval(mean, error)
    rate = _make_interval(*paired_mean(router_labels, prompts))
    word = _choose_word(gain)
    needed = 0 if word != "can't tell" else _count_needed(len(router_labels), mean, error)
    because = (
        f"its pick won {worded(rate.value, 'share')} of {len(router_labels):,} votes, a tie being "
        f"half a win, and that of the best fixed ranking "
        f"{worded(float(ranking_labels.mean()), 'share')}: {points(gain)}"
    )
    if needed:
        because += f". About {needed:,} judged votes would decide it"
    choices = Counter(name for part in rows for name in part.chosen)
    costs = [part.cost for part in rows], [part.ranking_cost for part in rows]
    return WinVerdict(
        word=word,
        because=because,
        votes=len(router_labels),
        win_rate=Estimate(rate.value, max(0.0, rate.lower), min(1.0, rate.upper)),
        ranking_win_rate=float(ranking_labels.mean()),
        gain=gain,
        differ=sum(part.differ for part in rows),
        best=parts[0].ranking.best,
        shares={name: choices[name] / choices.total() for name in parts[0].predictions.targets},
        cost=float(np.concatenate(costs[0]).mean()),
        ranking_cost=float(np.concatenate(costs[1]).mean()),
        needed=needed,
    )


@final
@dataclass(frozen=True, eq=False)
class _PartRows:
    """The votes of a part, one after another.

    Attributes:
        router_labels: The label of the router's pick.
        ranking_labels: The label of the ranking's pick.
        prompts: The prompt of each vote, by its key.
        differ: In how many votes the picks differ.
        cost: The cost of the router's pick, US dollars; NaN where unknown.
        ranking_cost: The cost of the ranking's pick.
        chosen: The target with the highest chance to win on each prompt.
    """

    router_labels: PerVote
    ranking_labels: PerVote
    prompts: list[str]
    differ: int
    cost: PerVote
    ranking_cost: PerVote
    chosen: list[str]

    @classmethod
    def of(cls, part: VotedPart) -> "_PartRows":
        targets = part.predictions.targets
        rows = part.dataset.select(part.predictions.query_ids, targets=targets)
        is_pair = (~np.isnan(rows.correct)).sum(axis=1) != 1  # the other target has left
        votes = Votes.of(np.where(is_pair[:, None], rows.correct, np.nan))
        chances = part.predictions.correctness[votes.row]
        ranking = dict(zip(part.ranking.targets, part.ranking.strengths, strict=True))
        strengths = np.array([ranking[name] for name in targets])
        ranks = np.broadcast_to(strengths, chances.shape)
        observed = rows.observed_cost[votes.row]
        estimated = part.predictions.estimated_cost[votes.row]
        is_free = not part.predictions.estimated_cost.any()
        paid = np.where(np.isnan(observed), np.nan if is_free else estimated, observed)
        return cls(
            votes.label_of_pick(chances),
            votes.label_of_pick(ranks),
            [rows.prompt_keys[row] for row in votes.row.tolist()],
            int((np.sign(votes.differences(chances)) != np.sign(votes.differences(ranks))).sum()),
            votes.of_pick(chances, paid),
            votes.of_pick(ranks, paid),
            [targets[place] for place in chances.argmax(axis=1).tolist()],
        )


def _choose_word(gain: Estimate) -> Word:
    if gain.lower > 0:
        return "worth it"
    return "not worth it" if gain.upper < WORTH else "can't tell"


def _make_interval(mean: float, error: float) -> Estimate:
    return Estimate(mean, mean - NORMAL * error, mean + NORMAL * error)


def _count_needed(count: int, mean: float, error: float) -> int:
    """About how many votes would show a gain, or that it is less than a point."""
    effect = max(mean, WORTH - mean)
    needed = count * (NORMAL * error / effect) ** 2
    if not math.isfinite(needed) or needed <= count:
        return 0
    return int(round(needed, 1 - len(str(int(needed)))))
