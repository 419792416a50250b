"""Why a call returned no answer: endpoint errors classified, and reported without the prompt.

An endpoint's error message is used to classify the failure and is never repeated, since it may
quote the prompt or the key. Its error type and code are repeated where they look like names and
are part of neither.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from prefill_router.endpoints.reply import Reply
from prefill_router.errors import FailureKind, UpstreamError

RETRIABLE: frozenset[FailureKind] = frozenset(
    (
        "connect",
        "connect_timeout",
        "first_token_timeout",
        "answer_timeout",
        "rate_limited",
        "overloaded",
        "server_error",
        "broken_off",
        "malformed",
        "empty",
    )
)
"""The failures after which the same call may succeed."""
_NEVER_BILLED: frozenset[FailureKind] = frozenset(("connect", "connect_timeout"))

_SAYS: dict[FailureKind, str] = {
    "connect": "can't be reached; check its base_url, and that it runs",
    "connect_timeout": "took no connection in time; check its base_url, or raise connect_seconds",
    "first_token_timeout": "sent no token in time; raise first_token_seconds",
    "answer_timeout": "didn't finish its answer in time; raise answer_seconds, or lower max_tokens",
    "rate_limited": "reports a rate limit; lower concurrency or requests_per_minute",
    "overloaded": "is overloaded; try again later",
    "server_error": "had an internal error; try again later",
    "broken_off": "broke off before the end of its answer; try again",
    "malformed": "sent something other than a chat completion; check its base_url and dialect",
    "unauthorised": "refuses the key, or the account has no credit; check api_key_env",
    "unknown_model": "doesn't know this model; check the target's model and the base_url",
    "context_too_long": "can't take a prompt this long; shorten it, or lower max_tokens",
    "content_filter": "filtered the prompt or the answer; leave this prompt out",
    "refused": "refuses the request as it is; check the target's request options and dialect",
    "empty": "sent an empty answer; try again",
}
_BY_STATUS: dict[int, FailureKind] = {
    401: "unauthorised",
    402: "unauthorised",
    403: "unauthorised",
    404: "unknown_model",
    408: "server_error",
    409: "server_error",
    413: "context_too_long",
    425: "overloaded",
    429: "rate_limited",
    503: "overloaded",
    529: "overloaded",
}
_BY_NAME: tuple[tuple[FailureKind, re.Pattern[str]], ...] = (
    (
        "unauthorised",
        re.compile(r"insufficient_quota|billing_|invalid_api_key|arrearage|authentication"),
    ),
    ("context_too_long", re.compile(r"context_length|context_window|string_above_max_length")),
    ("content_filter", re.compile(r"content_?filter|content_policy|data_?inspection|moderation")),
    ("unknown_model", re.compile(r"model_?not_?found|not_found_error|no_such_model")),
    ("rate_limited", re.compile(r"rate_?limit|throttling|too_many_requests")),
    ("overloaded", re.compile(r"overloaded|unavailable")),
)
_BY_WORDS: tuple[tuple[FailureKind, re.Pattern[str]], ...] = (
    (
        "unauthorised",
        re.compile(
            r"insufficient (balance|credit|quota)|plan and billing|credit balance is too low"
            r"|api key not valid|(invalid|incorrect) api key"
        ),
    ),
    (
        "refused",
        re.compile(
            r"max(_completion|_output)?_tokens\W{0,40}.{0,40}(too large|must be|at most|less than)"
        ),
    ),
    (
        "context_too_long",
        re.compile(
            r"context (length|window|size)|(prompt|input|request) (is |was )?too (long|large)"
            r"|too many (input |prompt )?tokens|longer than the model|range of input length"
        ),
    ),
    ("content_filter", re.compile(r"content management policy|content filter|\bflagged\b")),
    (
        "unknown_model",
        re.compile(
            r"model.{0,100}(does not exist|not found|not exist|is not a valid)|no endpoints found"
            r"|unknown model|invalid model"
        ),
    ),
)
_A_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{1,63}")


@final
@dataclass(frozen=True)
class ErrorBody:
    """An error as an endpoint reports it.

    Attributes:
        kind: Its type.
        code: Its code; in some shapes an HTTP status.
        words: Its message; shown only in translated answers.
        headers: The headers of the provider behind an aggregator that passes them on (OpenRouter).
    """

    kind: str = ""
    code: str = ""
    words: str = ""
    headers: Mapping[str, str] | None = None

    @property
    def status(self) -> int | None:
        """The code, where it is an HTTP status."""
        return int(self.code) if re.fullmatch(r"[3-5]\d\d", self.code) else None


def read_error(value: object) -> ErrorBody:
    """Read an error from any of the shapes in use: an object or a text, bare or under `error`."""
    if isinstance(value, list) and value:  # Gemini
        value = value[0]
    if isinstance(value, Mapping) and value.get("error"):
        value = value["error"]
    if not isinstance(value, Mapping):
        return ErrorBody(words=value.lower() if isinstance(value, str) else "")
    words = value.get("message") or value.get("detail") or ""
    return ErrorBody(
        kind=str(value.get("type") or value.get("status") or ""),
        code=str(value.get("code") or ""),
        words=str(words).lower(),
        headers=_handed_on(value.get("metadata")),
    )


def kind_of(error: ErrorBody, status: int | None) -> FailureKind:
    """Classify an error, by its type and code first, then its message, then the status."""
    names = f"{error.code} {error.kind}".lower()
    if status is None or status not in (429, 503, 529):
        for kind, pattern in _BY_NAME:
            if pattern.search(names):
                return kind
    if status is None or status < 500:
        for kind, pattern in _BY_WORDS:
            if pattern.search(error.words) and (status != 429 or kind == "unauthorised"):
                return kind
    if status == 429 and "insufficient_quota" in names:
        return "unauthorised"
    if status is None or status >= 500:
        return _BY_STATUS.get(status or 0, "server_error")
    return _BY_STATUS.get(status, "refused")


def failed(
    target: str,
    failure: FailureKind,
    *,
    status: int | None = None,
    error: ErrorBody | None = None,
    secrets: tuple[str, ...] = (),
    retry_after: float | None = None,
    billed: Literal["no", "perhaps"] | None = None,
    partial: Reply | None = None,
) -> UpstreamError:
    """The error to raise.

    Args:
        target: The name of the target.
        failure: Why there is no answer.
        status: The HTTP status, if there was a response.
        error: The error that the endpoint reported.
        secrets: The prompt and the key; a type or code that is part of one isn't repeated.
        retry_after: Seconds to wait, as the endpoint asks.
        billed: Whether it may have been billed; by default yes, unless the connection failed.
        partial: The part of the reply that arrived.
    """
    details = [f"HTTP {status}"] if status is not None else []
    for label, name in (("type", error.kind), ("code", error.code)) if error else ():
        if _A_NAME.fullmatch(name) and not any(name in s or s in name for s in secrets):
            details.append(f"{label} {name}")
    place = f" ({', '.join(details)})" if details else ""
    return UpstreamError(
        f"target {target!r}: its endpoint {_SAYS[failure]}{place}",
        failure=failure,
        status=status,
        retry_after=retry_after,
        retriable=failure in RETRIABLE,
        billed=billed or ("no" if failure in _NEVER_BILLED else "perhaps"),
        partial=partial,
    )


def _handed_on(metadata: Any) -> Mapping[str, str] | None:
    headers = metadata.get("headers") if isinstance(metadata, Mapping) else None
    if not isinstance(headers, Mapping):
        return None
    return {str(name).lower(): str(value) for name, value in headers.items()}
