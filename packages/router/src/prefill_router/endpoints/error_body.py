"""An error as an endpoint reports it, in any shape in use, and what kind of failure it is."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from prefill_router.endpoints.json_object import MalformedError, parse_json
from prefill_router.errors import FailureKind

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
    (
        "context_too_long",
        re.compile(r"context_length|context_window|string_above_max_length|\b1261\b"),  # Zhipu
    ),
    ("content_filter", re.compile(r"content_?filter|content_policy|data_?inspection|moderation")),
    ("unknown_model", re.compile(r"model_?not_?found|not_found_error|no_such_model")),
    ("rate_limited", re.compile(r"rate_?limit|throttling|too_many_requests")),
    ("overloaded", re.compile(r"overloaded|unavailable")),
    ("unsupported", re.compile(r"un(supported|known)_(parameter|value)|invalid_encrypted_content")),
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
        "unsupported",
        re.compile(
            r"max(_completion|_output)?_tokens\W{0,40}.{0,40}"
            r"(too large|at most|less than|must be <)"
            r"|which is the maximum allowed number of output|valid range of max_tokens"
            r"|no endpoints found that support"
        ),
    ),
    (
        "context_too_long",
        re.compile(
            r"context (length|window|size)|(prompt|input|request) (is |was )?too (long|large)"
            r"|too many (input |prompt )?tokens|longer than the model|range of input length"
            r"|exceed(s|ed)? (context limit|model token limit|the maximum number of tokens)"
            r"|maximum prompt length|prompt exceeds|.inputs. (tokens|must have less than)"
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
_UNSUPPORTED = re.compile(
    r"unsupported (parameter|value)|(is|are)( not|n't) supported|does( not|n't) support"
    r"|un(known|recognized|expected) (request |keyword )?(argument|parameter|field)"
    r"|extra inputs are not permitted|invalid .signature. in .thinking"
    r"|encrypted content .{0,80}could not be (verified|decrypted)"
)
_OF_BODIES = (None, 400, 413, 415, 422)
"""The statuses that are about the request's body."""


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
        return ErrorBody(words=value if isinstance(value, str) else "")
    words = value.get("message") or value.get("detail") or ""
    return ErrorBody(
        kind=str(value.get("type") or value.get("status") or ""),
        code=str(value.get("code") or ""),
        words=str(words),
        headers=_provider_headers(value.get("metadata")),
    )


def parse_error(body: bytes) -> ErrorBody:
    """Read an error from the body of a response; an empty one where it isn't JSON."""
    try:
        return read_error(parse_json(body.strip()))
    except MalformedError:
        return ErrorBody()


def kind_of(error: ErrorBody, status: int | None) -> FailureKind:
    """Classify an error, by its type and code first, then its message, then the status."""
    names, words = f"{error.code} {error.kind}".lower(), error.words.lower()
    if status is None or status not in (429, 503, 529):
        for kind, pattern in _BY_NAME:
            if pattern.search(names):
                return kind
    if status is None or status < 500:
        for kind, pattern in _BY_WORDS:
            if pattern.search(words) and (status != 429 or kind == "unauthorised"):
                return kind
    if status in _OF_BODIES and _UNSUPPORTED.search(words):
        return "unsupported"
    if status == 429 and "insufficient_quota" in names:
        return "unauthorised"
    if status is None or status >= 500:
        return _BY_STATUS.get(status or 0, "server_error")
    return _BY_STATUS.get(status, "refused")


def _provider_headers(metadata: Any) -> Mapping[str, str] | None:
    headers = metadata.get("headers") if isinstance(metadata, Mapping) else None
    if not isinstance(headers, Mapping):
        return None
    return {str(name).lower(): str(value) for name, value in headers.items()}
