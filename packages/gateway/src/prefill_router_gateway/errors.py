"""Errors of the gateway itself, in the format of the client's protocol."""

from collections.abc import Mapping
from typing import Any, final

from prefill_router.endpoints import FailureCause
from prefill_router.errors import PrefillRouterError
from prefill_router_gateway.records import AttemptEnd

_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


TOO_LONG = "prompt is too long"
"""What clients look for before they shorten a conversation."""


@final
class RefusalError(PrefillRouterError):
    """The gateway refuses a request; the message quotes no prompt and no key.

    Attributes:
        status: The HTTP status.
        kind: OpenAI's error type, for example `invalid_request_error`.
        code: A machine-readable code, for example `no_eligible_target`; None for none.
        param: The field that is wrong; None for none.
        headers: Further response headers, for example `retry-after`.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.code, self.param = status, kind, code, param
        self.headers = dict(headers or {})

    @classmethod
    def unavailable(cls, message: str) -> "RefusalError":
        """What the answer needs can't be had now, such as the database of receipts."""
        return cls(
            message,
            status=503,
            kind="server_error",
            code="unavailable",
            headers={"retry-after": "5"},
        )

    def body(self, *, anthropic: bool = False) -> dict[str, Any]:
        """The JSON of the response, in OpenAI's format or Anthropic's."""
        if anthropic:
            other = "invalid_request_error" if self.status < 500 else "api_error"
            kind = _ANTHROPIC.get(self.status, other)
            return {"type": "error", "error": {"type": kind, "message": str(self)}}
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}


@final
class BrokenResponseError(Exception):
    """A target's response is missing or broke off.

    Attributes:
        end: The reason.
        unheard: Whether an idle connection was closed while the request was being sent on it, so
            that the same request may be sent again on a new one.
        cause: Why there is no connection, as far as known.
    """

    def __init__(
        self, end: AttemptEnd, *, unheard: bool = False, cause: FailureCause | None = None
    ) -> None:
        super().__init__(end)
        self.end: AttemptEnd = end
        self.unheard, self.cause = unheard, cause


@final
class ClientGoneError(Exception):
    """The client has disconnected."""
