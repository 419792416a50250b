"""Errors of the gateway itself, in the shapes that clients of either protocol expect."""

from collections.abc import Mapping
from typing import Any, final

from prefill_router.errors import PrefillRouterError
from prefill_router.gateway.records import AttemptEnd

_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


@final
class RefusalError(PrefillRouterError):
    """A request that the gateway doesn't answer; the message quotes no prompt and no key.

    Attributes:
        status: The HTTP status.
        kind: OpenAI's error type, such as `invalid_request_error`.
        code: A word for programs, such as `no_eligible_target`; None for none.
        param: The field that is wrong; None for none.
        headers: Further headers of the reply, such as `retry-after`.
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

    def body(self, *, anthropic: bool = False) -> dict[str, Any]:
        """The reply's JSON: OpenAI's shape, or that of Anthropic's API."""
        if anthropic:
            other = "invalid_request_error" if self.status < 500 else "api_error"
            kind = _ANTHROPIC.get(self.status, other)
            return {"type": "error", "error": {"type": kind, "message": str(self)}}
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}


@final
class BrokenResponseError(Exception):
    """There is no reply, or no more of it.

    Attributes:
        end: Why.
        unheard: Whether an idle connection was closed as the request went out on it, so that the
            same request may be sent again on a new one.
    """

    def __init__(self, end: AttemptEnd, *, unheard: bool = False) -> None:
        super().__init__(end)
        self.end: AttemptEnd = end
        self.unheard = unheard


@final
class ClientGoneError(Exception):
    """The client has left."""
