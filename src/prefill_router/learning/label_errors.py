"""How often each source of labels errs, estimated from how the sources agree.

Two labels of one answer that are wrong independently, with the probabilities a and b, contradict
each other with the probability a (1 - b) + b (1 - a). Where b is known, a follows; where a judge is
asked the same again, or about a pair in both orders, a = b. Mistakes that a judge repeats don't
show in its agreement with itself, so the estimate starts from no less than `UNKNOWN` and moves to
what better known sources say, as far as there are labels of both.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, final

from prefill_router.data import CUT
from prefill_router.gateway.receipts import USER_ERROR, AnswerLabel, Feedback

UNKNOWN: Final = 0.05
"""The error of a judge of which nothing is known but its agreement with itself."""
BEHIND: Final = 20.0
"""So many comparisons weigh as much as what is assumed without them."""
MOST: Final = 0.45


@final
@dataclass(frozen=True, kw_only=True)
class LabelSource:
    """How good the labels of one source are.

    Attributes:
        name: The source.
        labels: The number of answers that it scored.
        repeated: The number of answers that it scored again.
        agreement: The share of these where it gave the same score; NaN without any.
        first: The share of pairs in both orders in which it preferred the answer that it was shown
            first, a tie as half; NaN without any. A judge without a bias of order has 0.5.
        by_users: The number of answers that users scored too.
        user_agreement: The share of these where both say the same; NaN without any, or for users.
        compared: The number of answers that a better known source scored too, verifiers or users.
        contradicted: The share of these with the opposite score; NaN without any.
        error: The estimated probability that one of its labels is wrong.
    """

    name: str
    labels: int
    repeated: int = 0
    agreement: float = math.nan
    first: float = math.nan
    by_users: int = 0
    user_agreement: float = math.nan
    compared: int = 0
    contradicted: float = math.nan
    error: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {name: None if value != value else value for name, value in vars(self).items()}


_Cell = tuple[str, str]
_Scores = Mapping[_Cell, list[float]]


def label_sources(
    labels: Iterable[AnswerLabel], feedback: Mapping[_Cell, Iterable[Feedback]]
) -> dict[str, LabelSource]:
    """Estimate every source's errors.

    Verifiers are taken as exact, users' feedback is compared with them, and judges with both.

    Args:
        labels: All labels, in order of time; several of one source about one answer are repeats.
        feedback: The latest feedback of each user on the answers of sampled requests.
    """
    by_source: dict[str, dict[_Cell, list[float]]] = defaultdict(lambda: defaultdict(list))
    reversed_: dict[str, dict[_Cell, float]] = defaultdict(dict)
    for label in labels:
        cell = label.id, label.target
        by_source[label.rater][cell].append(label.score)
        if label.source != label.rater:
            reversed_[label.rater][cell] = label.score
    for cell, given in feedback.items():
        scores = [one.score for one in given]
        if scores:
            by_source["user"][cell].append(sum(scores) / len(scores))
    known: dict[str, LabelSource] = {}
    for name in sorted(by_source, key=_trust):
        found = _source(name, by_source[name], known, by_source)
        known[name] = replace(found, first=_first(by_source[name], reversed_[name]))
    return known


def _first(scores: _Scores, reversed_: Mapping[_Cell, float]) -> float:
    """How often the answer that is shown first is preferred, of pairs judged in both orders."""
    both = [
        (sum(scores[cell]) - last, last)
        for cell, last in reversed_.items()
        if len(scores[cell]) == 2
    ]
    return sum((1 + one - last) / 2 for one, last in both) / len(both) if both else math.nan


def _trust(name: str) -> tuple[int, str]:
    """Better known sources first."""
    return (0 if name.startswith("verifier:") else 1 if name == "user" else 2), name


def _source(
    name: str,
    scores: _Scores,
    known: Mapping[str, LabelSource],
    by_source: Mapping[str, _Scores],
) -> LabelSource:
    if name.startswith("verifier:"):
        return LabelSource(name=name, labels=len(scores), error=0.0)
    again = [_right(s[0]) == _right(s[1]) for s in scores.values() if len(s) > 1]
    agreement = _mean(again)
    pairs = [
        (_right(mine[-1]) != _right(by_source[other.name][cell][-1]), other)
        for cell, mine in scores.items()
        for other in known.values()
        if _trust(other.name)[0] < _trust(name)[0] and cell in by_source[other.name]
    ]
    off = _mean(opposite for opposite, _ in pairs)
    users = [not opposite for opposite, other in pairs if other.name == "user"]
    theirs = sum(other.error for _, other in pairs) / len(pairs) if pairs else 0.0
    return LabelSource(
        name=name,
        labels=len(scores),
        repeated=len(again),
        agreement=agreement,
        by_users=len(users),
        user_agreement=_mean(users),
        compared=len(pairs),
        contradicted=off,
        error=estimated_error(
            repeats=len(again),
            agreement=agreement,
            compared=len(pairs),
            contradicted=off,
            theirs=theirs,
            assumed=USER_ERROR if name == "user" else UNKNOWN,
        ),
    )


def estimated_error(
    *,
    repeats: int,
    agreement: float,
    compared: int,
    contradicted: float,
    theirs: float,
    assumed: float,
) -> float:
    """The estimated probability that a label of a source is wrong, at most `MOST`.

    Args:
        repeats: How often it scored the same answer again.
        agreement: The share of these with the same score.
        compared: How often a better known source scored the same answer.
        contradicted: The share of these with the opposite score.
        theirs: The error of those sources.
        assumed: The error without any comparison.
    """
    own = 0.0
    if repeats:
        differ = min(1 - agreement, 0.5)
        own = (1 - math.sqrt(1 - 2 * differ)) / 2 * repeats / (repeats + BEHIND)
    start = max(assumed, own)
    if not compared:
        return min(start, MOST)
    told = min(max((contradicted - theirs) / (1 - 2 * theirs), 0.0), MOST)
    return min((BEHIND * start + compared * told) / (BEHIND + compared), MOST)


def _mean(held: Iterable[bool]) -> float:
    found = list(held)
    return sum(found) / len(found) if found else math.nan


def _right(score: float) -> bool:
    return score >= CUT
