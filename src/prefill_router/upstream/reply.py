"""What an endpoint answered, in one shape whatever its dialect."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from prefill_router.brief import brief


@final
@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens as the endpoint reported them; None where it said nothing that can be read.

    Attributes:
        input_tokens: Of the prompt, cached ones included.
        cached_tokens: Those of them that came from the provider's cache.
        output_tokens: Of the answer, reasoning included.
        reasoning_tokens: Those of them that were reasoning.
        reported: What was reported, word for word.
    """

    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    reported: Mapping[str, Any] = field(default_factory=dict, hash=False)


@brief
@final
@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer, whole.

    Attributes:
        text: The answer, without reasoning.
        reasoning: The reasoning trace; empty where none came back.
        finish_reason: Such as `stop` or `length`; None where none was given.
        served_by: The target that really served it, as the endpoint names it; None where unsaid.
        usage: Tokens as reported.
        first_token_seconds: From the request to the first token of any kind; None without one.
        first_answer_seconds: From the request to the first token of the answer; None without one.
        seconds: From the request to the end.
        response: Everything else that came back, such as id, provider and tool calls.
    """

    text: str
    reasoning: str = ""
    finish_reason: str | None = None
    served_by: str | None = None
    usage: Usage = field(default_factory=Usage)
    first_token_seconds: float | None = None
    first_answer_seconds: float | None = None
    seconds: float = 0.0
    response: Mapping[str, Any] = field(default_factory=dict, hash=False)
