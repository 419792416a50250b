"""What a call to the targets needs, and the body that each of them gets."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, final, runtime_checkable

from prefill_router.short_repr import short_repr
from prefill_router.targets import Endpoint
from prefill_router_gateway.answer_text import AnswerText
from prefill_router_gateway.protocol import EffortRule, Splicer, ThinkingHint, ThinkingRule
from prefill_router_gateway.records import Header

LACKING = frozenset((404, 405, 501))
"""The statuses by which a target says that it doesn't support a call of few targets."""


@final
@dataclass(frozen=True, kw_only=True)
class BodyRules:
    """How the bodies of one request differ between the targets of a pool.

    Attributes:
        models: The provider's name of the model of each target and deployment, by its name.
        further: The fields that set each of them apart from its model, such as a switch of
            reasoning, as JSON. They are added to chats that don't set them.
        efforts: How a body says the effort, of the targets and deployments that have one.
        chat_only: For the endpoints that are translated to chats, the targets and deployments that
            serve chats in their place, with the name of a chat's field for the most output tokens.
        ask_usage: Whether streams of chats are asked for their token counts.
        thinking: The targets and deployments that think before they answer, as the pool file says.
        hinted: Those that get hints on thinking with a translated request.
        volatile: The starts of system texts that agents change with each request; a translated
            request goes without such a line.
    """

    models: Mapping[str, str]
    further: Mapping[str, Mapping[str, bytes]]
    chat_only: Mapping[Endpoint, Mapping[str, str]]
    ask_usage: bool
    efforts: Mapping[str, EffortRule] = field(default_factory=dict)
    thinking: Collection[str] = ()
    hinted: Mapping[str, ThinkingRule] = field(default_factory=dict)
    volatile: tuple[str, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class BodyFixes:
    """How the bodies of a deployment differ from the usual ones, since it has refused these.

    Attributes:
        rename: A chat's limit of output tokens, and its name here; None where it stays.
        refused_hints: The names of the hints on thinking that it doesn't get.
    """

    rename: tuple[str, str] | None = None
    refused_hints: frozenset[str] = frozenset()


NO_FIXES = BodyFixes()


@runtime_checkable
class ForwardBody(Protocol):
    """A request's body, held until no target needs it any more."""

    def for_target(self, name: str, fixes: BodyFixes = NO_FIXES) -> bytes:
        """The body for a deployment, called for each attempt.

        Args:
            name: The deployment.
            fixes: How it differs from the usual one.
        """

    def release(self) -> None:
        """Free what bodies are made from, since no more targets will be called."""


@final
class SplicedBody:
    """A body in which each target finds the name of its own model.

    Only the received bytes are kept for it: the parsed fields may take ten times as much memory.

    Args:
        splicer: Puts names into the received bytes.
        endpoint: The endpoint.
        rules: How bodies differ between targets.
        ask_usage: Whether to ask for a stream's token counts, where the client didn't.
        hints: The hints on thinking for deployments to which the request is translated.
    """

    def __init__(
        self,
        splicer: Splicer,
        *,
        endpoint: Endpoint,
        rules: BodyRules,
        ask_usage: bool,
        hints: Mapping[str, ThinkingHint] = MappingProxyType({}),
    ) -> None:
        self._hints = hints
        self._splicer: Splicer | None = splicer
        self._endpoint, self._rules, self._ask_usage = endpoint, rules, ask_usage

    def for_target(self, name: str, fixes: BodyFixes = NO_FIXES) -> bytes:
        """The client's bytes, with the name of this deployment's model.

        Args:
            name: As in `ForwardBody`.
            fixes: The same.

        Raises:
            RuntimeError: It was released.
            RecursionError: As `protocol.chat_splicer`, where a message is translated to a chat.
            RefusalError: The same.
        """
        splicer, endpoint, rules = self._splicer, self._endpoint, self._rules
        if splicer is None:
            raise RuntimeError("the body was released; make all bodies before")
        ask_usage = self._ask_usage
        limits = rules.chat_only.get(endpoint, {})
        if name in limits:
            from prefill_router_gateway.protocol import chat_splicer  # for translated calls alone

            hint = hint_for(self._hints, name, fixes)
            splicer = chat_splicer(
                endpoint, splicer.body, limit=limits[name], hint=hint, volatile=rules.volatile
            )
            endpoint = "chat"
            ask_usage = rules.ask_usage
        rule = rules.efforts.get(name)
        if rule is not None and endpoint in rule.fields:
            from prefill_router_gateway.protocol import effort_splicer  # for these alone

            splicer = effort_splicer(endpoint, splicer.body, rule)
        further = rules.further[name] if endpoint == "chat" else None
        return splicer.body_for(
            rules.models[name],
            ask_usage=ask_usage,
            further=further,
            rename=fixes.rename if endpoint == "chat" else None,
        )

    def release(self) -> None:
        """Free the received bytes."""
        self._splicer = None


def hint_for(hints: Mapping[str, ThinkingHint], name: str, fixes: BodyFixes) -> ThinkingHint | None:
    """The hint on thinking for a deployment; None where it gets none."""
    hint = hints.get(name)
    return None if hint is None or hint.name in fixes.refused_hints else hint


@final
class FixedBody:
    """A body that is the same for every target.

    Args:
        body: The bytes.
    """

    def __init__(self, body: bytes) -> None:
        self._body = body

    def for_target(self, name: str, fixes: BodyFixes = NO_FIXES) -> bytes:  # noqa: ARG002
        """The bytes."""
        return self._body

    def release(self) -> None:
        """Free the bytes."""
        self._body = b""


@short_repr
@final
@dataclass(frozen=True, kw_only=True)
class ForwardRequest:
    """One call to forward.

    Attributes:
        endpoint: The endpoint.
        method: The HTTP method.
        below: The path after the endpoint's path, percent-encoded, e.g. `/resp_1/cancel`.
        query: The client's query string, percent-encoded.
        is_plain: Whether it is a passthrough call, whose answer is forwarded unread.
        lacking: The statuses by which a target says that it doesn't support a passthrough call.
        body: Makes each target's body.
        order: The targets that may be called, in order. A deployment in the place of its target
            means that none of the target's other endpoints may be called.
        stream: Whether the client requested a stream.
        usage_added: Whether the body requests token counts that the client didn't; the event that
            has only these is then dropped.
        headers: The client's headers that targets get, with names in lower case.
        stay: Whether only the first target may answer.
        input_tokens: Estimated input tokens, used where a target reports none.
        began: When the request arrived, by the loop's clock; None for now.
        conversation: The name of the conversation, or of the request if it has none; it keeps to
            one of a target's endpoints.
        answer: Takes the answer's text, where the request is sampled; None otherwise.
        translated: The targets and deployments that are asked by a chat in its place.
        thinking: The targets and deployments that may think for minutes before they answer.
        hints: The hints on thinking for those that are called by a chat.
    """

    endpoint: Endpoint
    body: ForwardBody
    order: tuple[str, ...]
    stream: bool = False
    usage_added: bool = False
    headers: list[Header] = field(default_factory=list)
    stay: bool = False
    input_tokens: int = 0
    began: float | None = None
    method: bytes = b"POST"
    below: bytes = b""
    query: bytes = b""
    is_plain: bool = False
    lacking: frozenset[int] = frozenset()
    conversation: str = ""
    answer: AnswerText | None = None
    translated: Collection[str] = ()
    thinking: Collection[str] = ()
    hints: Mapping[str, ThinkingHint] = field(default_factory=dict)
