"""Why a call gave no answer: what was called, what came, what that means, and what to do.

An endpoint's error message is used to classify the failure and is never repeated, since it may
quote the prompt or the key. Its error type and code are repeated where they look like names and
are part of neither. Of an address its query isn't shown, and of a redirect only the host.
"""

import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final
from urllib.parse import urlsplit

from prefill_router.endpoints.error_body import ErrorBody
from prefill_router.errors import FailureKind, UpstreamError
from prefill_router.targets import public_address

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
FOR_ANY_PROMPT: frozenset[FailureKind] = frozenset(("unauthorised", "unknown_model"))
"""The failures that a target would have with any other prompt too."""
FOR_ONE_PROMPT: frozenset[FailureKind] = frozenset(
    ("context_too_long", "content_filter", "unsupported", "refused")
)
"""The failures that the same request would have again, and others may not."""
_NEVER_BILLED: frozenset[FailureKind] = frozenset(("connect", "connect_timeout"))

FailureCause = Literal[
    "no_server", "no_host", "certificate", "not_tls", "redirect", "web_page", "encoding"
]
"""What is known beyond the kind of a failure.

- `no_server`: the host refuses connections at this port; `no_host`: the name is unknown;
- `certificate`: it isn't valid or not trusted; `not_tls`: the server doesn't speak TLS;
- `redirect`: it names another address; `web_page`: HTML came in place of an answer;
- `encoding`: the answer is compressed in a way that nobody asked for and that can't be read.
"""


@final
@dataclass(frozen=True, kw_only=True)
class FailedCall:
    """A call without an answer.

    Attributes:
        kind: Why there is none: a `FailureKind`, or a word that the callee's `words` explain.
        cause: What else is known; None for nothing.
        status: The HTTP status; None without a response.
        error: The error that the endpoint reported.
        location: Where a redirect leads.
        encoding: How a body is compressed that can't be read.
    """

    kind: str
    cause: FailureCause | None = None
    status: int | None = None
    error: ErrorBody | None = None
    location: str | None = None
    encoding: str | None = None


Words = tuple[str, str]
"""What an endpoint did, and what to do about it."""

_WORDS: Mapping[str, Words] = {
    "connect": ("can't be reached", "check its base_url, and that it runs"),
    "connect_timeout": (
        "took no connection in time",
        "check its base_url, or raise connect_seconds",
    ),
    "first_token_timeout": ("sent no token in time", "raise first_token_seconds"),
    "answer_timeout": (
        "didn't finish its answer in time",
        "raise answer_seconds, or lower max_tokens",
    ),
    "rate_limited": ("reports a rate limit", "lower concurrency or requests_per_minute"),
    "overloaded": ("is overloaded", "try again later"),
    "server_error": ("had an internal error", "try again later"),
    "broken_off": ("broke off before the end of its answer", "try again"),
    "malformed": (
        "sent something other than a chat completion",
        "check its base_url and dialect",
    ),
    "unauthorised": (
        "refuses the key, or the account has no credit",
        "check api_key_env",
    ),
    "unknown_model": (
        "doesn't know this model",
        "check the target's model and the base_url",
    ),
    "context_too_long": (
        "can't take a prompt this long",
        "shorten it, or lower max_tokens",
    ),
    "content_filter": ("filtered the prompt or the answer", "leave this prompt out"),
    "unsupported": (
        "doesn't support what the request asks for",
        "check the target's request options and dialect",
    ),
    "refused": (
        "refuses the request as it is",
        "check the target's request options and dialect",
    ),
    "empty": ("sent an empty answer", "try again"),
}
_BY_CAUSE: Mapping[FailureCause, Words] = {
    "no_server": (
        "can't be reached, since nothing listens there",
        "check its base_url, and that it runs",
    ),
    "no_host": (
        "can't be reached, since its host is unknown",
        "check the host's name in its base_url, and the network",
    ),
    "certificate": (
        "can't be reached, since its certificate isn't trusted",
        "check its base_url, or name the certificates to trust in SSL_CERT_FILE",
    ),
    "not_tls": (
        "can't be reached, since it doesn't speak TLS as expected",
        "check whether its base_url begins with http:// or https://",
    ),
    "redirect": (
        "redirects, and the key isn't sent on",
        "give the new address as its base_url, if you trust it",
    ),
    "encoding": (
        "sent a compressed answer that can't be read, though none was asked for",
        "let it, or the proxy before it, send gzip or nothing",
    ),
    "web_page": (
        "sent a web page",
        "check that its base_url is the address of an API, which often ends with /v1",
    ),
}
_A_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{1,63}")
_LEAST_SECRET = 4  # characters; shorter ones are part of many names
_A_TOKEN = re.compile(r"[a-z0-9, -]{1,32}")
_A_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]{0,252}")


@final
@dataclass(frozen=True, kw_only=True)
class Callee:
    """An endpoint as errors name it.

    Attributes:
        subject: Whose it is, such as `target 'small': its endpoint`.
        address: Its URL; empty where the subject says it.
        words: What to say of a failure, where it isn't what is said of targets.
        advice: What to do about a failure, likewise.
    """

    subject: str
    address: str = ""
    words: Mapping[str, Words] = field(default_factory=dict)
    advice: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_target(cls, target: str, base_url: str = "") -> "Callee":
        """The endpoint of a target."""
        return cls(subject=f"target {target!r}: its endpoint", address=base_url)

    def describe(self, failed: FailedCall, *, secrets: tuple[str, ...] = ()) -> str:
        """What came of a call and what to do, in one sentence.

        Args:
            failed: The call.
            secrets: The prompt and the key; no name that is part of one is repeated.
        """
        event, advice = self._words(failed)
        place = f" at {public_address(self.address)}" if self.address else ""
        details = ", ".join(_details(failed, secrets))
        details = f" ({details})" if details else ""
        return f"{self.subject}{place} {event}; {advice}{details}"

    def say_event(self, failed: FailedCall) -> str:
        """What came of a call, in a few words that follow the endpoint's name."""
        return self._words(failed)[0]

    def error(
        self,
        kind: FailureKind,
        *,
        cause: FailureCause | None = None,
        status: int | None = None,
        error: ErrorBody | None = None,
        location: str | None = None,
        secrets: tuple[str, ...] = (),
        retry_after: float | None = None,
        billed: Literal["no", "perhaps"] | None = None,
        partial: Any = None,
    ) -> UpstreamError:
        """The error to raise.

        Args:
            kind: Why there is no answer.
            cause: As in `FailedCall`, and so `status`, `error` and `location`.
            status: The HTTP status.
            error: The error that the endpoint reported.
            location: Where a redirect leads.
            secrets: As for `describe`.
            retry_after: Seconds to wait, as the endpoint asks.
            billed: Whether it may have been billed; by default yes, unless the connection failed.
            partial: The part of the `Reply` that arrived.
        """
        failed = FailedCall(kind=kind, cause=cause, status=status, error=error, location=location)
        return UpstreamError(
            self.describe(failed, secrets=secrets),
            failure=kind,
            status=status,
            retry_after=retry_after,
            retriable=kind in RETRIABLE,
            billed=billed or ("no" if kind in _NEVER_BILLED else "perhaps"),
            partial=partial,
        )

    def _words(self, failed: FailedCall) -> Words:
        if failed.cause is not None and (failed.cause != "web_page" or failed.kind == "malformed"):
            return _BY_CAUSE[failed.cause]
        event, advice = self.words.get(failed.kind) or _WORDS[failed.kind]
        return event, self.advice.get(failed.kind, advice)


def _details(failed: FailedCall, secrets: tuple[str, ...]) -> Iterator[str]:
    if failed.status is not None:
        yield f"HTTP {failed.status}"
    host = _host(failed.location) if failed.cause == "redirect" else ""
    if host and not _quotes(host, secrets):
        yield f"to {host}"
    if failed.encoding is not None and _A_TOKEN.fullmatch(failed.encoding):
        yield f"content-encoding {failed.encoding}"
    if failed.cause == "web_page" and failed.kind != "malformed":
        yield "a web page"
    error = failed.error or ErrorBody()
    for label, name in (("type", error.kind), ("code", error.code)):
        if _A_NAME.fullmatch(name) and not any(name in s or s in name for s in secrets):
            yield f"{label} {name}"


def _quotes(host: str, secrets: tuple[str, ...]) -> bool:
    """Whether a host has a secret in it, or one of its labels is part of a secret."""
    hidden = [secret.lower() for secret in secrets if len(secret) >= _LEAST_SECRET]
    labels = [label for label in host.split(".") if len(label) >= _LEAST_SECRET]
    return any(s in host or any(label in s for label in labels) for s in hidden)


def _host(location: str | None) -> str:
    """The host of a redirect; empty where there is none that can be shown."""
    try:
        host = urlsplit(location or "").hostname or ""
    except ValueError:
        return ""
    return host if _A_HOST.fullmatch(host) else ""


def connect_cause(
    error: BaseException | None, *, through_proxy: bool = False
) -> FailureCause | None:
    """Why a connection couldn't be made; None where the error doesn't say.

    Args:
        error: The error.
        through_proxy: Whether a proxy was called, so that an unknown host or a server that doesn't
            run may be the proxy's.
    """
    for _ in range(8):
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, ConnectionRefusedError):
            return None if through_proxy else "no_server"
        if isinstance(error, socket.gaierror):
            return None if through_proxy else "no_host"
        if isinstance(error, ssl.SSLCertVerificationError):
            return "certificate"
        if isinstance(error, ssl.SSLError):
            return "not_tls"
        if error is None:
            return None
        error = error.__cause__ or error.__context__
    return None


def refusal_cause(status: int, content_type: str) -> FailureCause | None:
    """What an error response says beyond its status: that it is a redirect, or a web page."""
    if 300 <= status < 400:
        return "redirect"
    return "web_page" if "html" in content_type.lower() else None
