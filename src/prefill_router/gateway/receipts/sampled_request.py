"""Sampled requests: what was asked, answered and labelled, and how one is asked again.

An answer may have labels of several sources. An exact one decides; others are combined as if they
erred independently, into the likelier score and the probability that it is wrong.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, cast, final

from prefill_router.data import Message, Prompt
from prefill_router.gateway.protocol import Envelope, read_envelope, scored_prompt
from prefill_router.gateway.receipts.labels import (
    AnswerLabel,
    SampledRequest,
    SideAnswer,
    SideQuestions,
    read_learning,
)
from prefill_router.gateway.receipts.rows import Feedback
from prefill_router.gateway.types import Scored
from prefill_router.targets import Endpoint, Target

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


_SAMPLING: Final = ("temperature", "top_p")
_FURTHER: Final = ("stop", "presence_penalty", "frequency_penalty")
_STOPS: Final = "stop_sequences"
"""Anthropic's name of `stop`."""


@final
@dataclass(frozen=True)
class RepeatedRequest:
    """A sampled request, read so that any target can be asked the same.

    Attributes:
        sample: The request as it was kept; its body must not have been purged.
    """

    sample: SampledRequest = field(repr=False)

    @cached_property
    def _envelope(self) -> Envelope:
        body = json.dumps({"model": "auto", **self.sample.body}).encode()
        return read_envelope(cast(Endpoint, self.sample.endpoint), body)

    @property
    def prompt(self) -> tuple[Message, ...]:
        """All turns; system prompts first where they have a field of their own.

        Raises:
            RefusalError: The body isn't a request; so are the others.
        """
        return self._envelope.turns

    def scored_prompt(self, scored: Scored) -> Prompt | None:
        """What the encoder reads of it; None where it has no text."""
        return scored_prompt(self._envelope, scored)

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON schema that an answer must follow; empty for any JSON object, None for text."""
        given = self._format
        if given is None or given.get("type") not in ("json_schema", "json_object"):
            return None
        named = given.get("json_schema")
        found = named.get("schema") if isinstance(named, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    def options_for(self, target: Target) -> Target:
        """The target with this request's own options, where the client gave them."""
        body, own = self.sample.body, target.request
        further = {name: body[name] for name in _FURTHER if body.get(name) is not None}
        if body.get(_STOPS):
            further["stop"] = body[_STOPS]
        if self._format is not None:
            further["response_format"] = dict(self._format)
        limit = self._envelope.max_tokens
        sampling = {name: body[name] for name in _SAMPLING if body.get(name) is not None}
        request = replace(
            own,
            **sampling,
            max_tokens=own.max_tokens if limit is None else max(1, min(limit, own.max_tokens)),
            extra_body={**further, **own.extra_body},
        )
        return replace(target, request=request)

    @property
    def _format(self) -> Mapping[str, Any] | None:
        """The format of answers that it asks for, in the form of chat completions."""
        body = self.sample.body
        if self.sample.endpoint == "chat":
            given = body.get("response_format")
            return given if isinstance(given, Mapping) else None
        held = body.get("text" if self.sample.endpoint == "responses" else "output_config")
        given = held.get("format") if isinstance(held, Mapping) else None
        if given is None and self.sample.endpoint == "messages":
            given = body.get("output_format")
        if not isinstance(given, Mapping) or given.get("type") == "text":
            return None
        if given.get("type") != "json_schema":
            return given
        named = {"name": "answer"} | {n: value for n, value in given.items() if n != "type"}
        return {"type": "json_schema", "json_schema": named}
