"""Why a call gave no answer: what endpoints say, told apart and told without what was asked.

An endpoint's own words are used to tell failures apart, and never repeated: they may quote the
prompt or the key. Only its error type and code are, where they look like names and are part of
neither.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from prefill_router.client.reply import Reply
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
    "first_token_timeout": "gave no token in time; raise first_token_seconds",
    "answer_timeout": "didn't finish its answer in time; raise answer_seconds, or lower max_tokens",
    "rate_limited": "is asked too often; lower concurrency or requests_per_minute",
    "overloaded": "has too much to do; ask again later",
    "server_error": "failed by itself; ask again later",
    "broken_off": "broke off before the end of its answer; ask again",
    "malformed": "sent what isn't a chat completion; check its base_url and dialect",
    "unauthorised": "refuses the key, or the account has no credit; check api_key_env",
    "unknown_model": "doesn't know this model; check the target's model and the base_url",
    "context_too_long": "can't take so long a prompt; shorten it, or lower max_tokens",
    "content_filter": "filtered the prompt or the answer; leave this prompt out",
    "refused": "refuses the request as it is; check the target's request options and dialect",
    "empty": "ended its answer before it began; ask again",
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
    """An error as an endpoint tells it.

    Attributes:
        kind: Its type.
        code: Its code, also of the HTTP reply.
        words: Its message; never to be shown.
        headers: Those of the provider behind, where they are handed on (OpenRouter).
    """

    kind: str = ""
    code: str = ""
    words: str = ""
    headers: Mapping[str, str] | None = None

    @property
    def status(self) -> int | None:
        """The code, where it is one of HTTP."""
        return int(self.code) if re.fullmatch(r"[3-5]\d\d", self.code) else None


def read_error(value: object) -> ErrorBody:
    """An error from any of the shapes in use: an object or a text, bare or under `error`."""
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
    """Which failure an error is, by its names first, then its words, then the status."""
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
        target: Who was asked.
        failure: Why there is no answer.
        status: Of the HTTP reply, if one came.
        error: What the endpoint told.
        secrets: The prompt and the key, which its names must not be part of.
        retry_after: Seconds.
        billed: Whether it may have cost something; by default it may where it was reached.
        partial: What came.
    """
    told = [f"HTTP {status}"] if status is not None else []
    for label, name in (("type", error.kind), ("code", error.code)) if error else ():
        if _A_NAME.fullmatch(name) and not any(name in s or s in name for s in secrets):
            told.append(f"{label} {name}")
    place = f" ({', '.join(told)})" if told else ""
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
