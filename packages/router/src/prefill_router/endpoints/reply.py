"""An endpoint's reply, in one shape for every dialect."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from prefill_router.endpoints.usage import Usage
from prefill_router.short_repr import short_repr


@short_repr
@final
@dataclass(frozen=True, kw_only=True)
class Reply:
    """One complete answer.

    Attributes:
        text: The answer, without reasoning.
        reasoning: The reasoning trace; empty where none came back.
        finish_reason: For example `stop` or `length`; None where none was given.
        served_by: The model that served it, as the endpoint names it; None where it doesn't.
        usage: Tokens as reported.
        first_token_seconds: From the request to the first token of any kind; None without one.
        first_answer_seconds: From the request to the first token of the answer; None without one.
        seconds: From the request to the end.
        response: The other fields of the response, for example id, provider and tool calls.
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
