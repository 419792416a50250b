"""Sampled requests with what was asked, answered and labelled, and the label of each answer.

An answer may have labels of several sources. An exact one decides; others are combined as if they
erred independently, into the likelier score and the probability that it is wrong.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from prefill_router.gateway.receipts.labels import (
    AnswerLabel,
    SampledRequest,
    SideAnswer,
    SideQuestions,
    read_learning,
)
from prefill_router.gateway.receipts.rows import Feedback

USER_ERROR: Final = 0.15
"""The error of users' feedback, where it wasn't estimated."""
_SAME = 0.01
"""Labels whose combined probability is this close to a half contradict each other."""


@final
@dataclass(frozen=True, kw_only=True)
class LabelledSample:
    """A sampled request and what is known of its answers.

    Attributes:
        sample: The request.
        questions: What was drawn to be labelled; None where nothing was drawn yet.
        answers: The answers on the side, by target.
        labels: The labels, in order of time.
    """

    sample: SampledRequest
    questions: SideQuestions | None = None
    answers: Mapping[str, SideAnswer] = field(default_factory=dict, hash=False)
    labels: Sequence[AnswerLabel] = ()

    def label(
        self,
        target: str,
        feedback: Sequence[Feedback] = (),
        errors: Mapping[str, float] | None = None,
    ) -> tuple[float, float] | None:
        """The score of a target's answer and its error; None where it wasn't drawn, or isn't known.

        Args:
            target: The target.
            feedback: Users' latest scores of its answer.
            errors: The error of each source (`user` for feedback), in place of the labels' own.
        """
        if self.questions is None or target not in self.questions.drawn:
            return None
        told = errors or {}
        latest = {one.source: one for one in self.labels if one.target == target}
        found = [(one.score, told.get(one.rater, one.error)) for one in latest.values()]
        found += [(one.score, told.get("user", USER_ERROR)) for one in feedback]
        return combined(found) if found else None

    def sources(self, target: str, feedback: Sequence[Feedback] = ()) -> set[str]:
        """The sources of a target's labels."""
        named = {one.rater for one in self.labels if one.target == target}
        return named | ({"user"} if feedback else set())


def combined(labels: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """One score and error from several, each a score with its error.

    Labels that outweigh each other give 0.5, without an error.
    """
    if len(labels) == 1:
        return labels[0]
    for score, error in labels:
        if error == 0:
            return score, 0.0
    odds = 0.0
    for score, error in labels:
        right = score * (1 - error) + (1 - score) * error
        odds += math.log(right / (1 - right))
    right = 1 / (1 + math.exp(-max(-50.0, min(odds, 50.0))))
    if abs(right - 0.5) < _SAME:
        return 0.5, 0.0
    return (1.0, 1 - right) if right > 0.5 else (0.0, right)


def labelled_samples(url: str, *, since: float | None = None) -> dict[str, LabelledSample]:
    """Read sampled requests whose texts weren't purged, with all that is known of them.

    Args:
        url: See `open_store`.
        since: Only requests from this time on, in seconds since 1970.

    Raises:
        StoreError, CorruptError: As for `read_learning`.
    """
    samples = {s.id: s for s in read_learning(url, SampledRequest, since=since) if s.body}
    if not samples:
        return {}
    drawn = {one.id: one for one in read_learning(url, SideQuestions, since=since)}
    answers: dict[str, dict[str, SideAnswer]] = {}
    for answer in read_learning(url, SideAnswer, since=since):
        answers.setdefault(answer.id, {})[answer.target] = answer
    labels: dict[str, list[AnswerLabel]] = {}
    for label in read_learning(url, AnswerLabel, since=since):
        labels.setdefault(label.id, []).append(label)
    return {
        name: LabelledSample(
            sample=sample,
            questions=drawn.get(name),
            answers=answers.get(name, {}),
            labels=labels.get(name, ()),
        )
        for name, sample in samples.items()
    }
