"""Asks a running gateway about LiteLLM's requests, and tells it what came of them."""

import asyncio
import json
import math
import os
import weakref
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import httpx2

from prefill_router.endpoints import check_encrypted, is_loopback
from prefill_router.errors import ConfigError, PrefillRouterError
from prefill_router.policy import check_lam
from prefill_router.targets import Endpoint
from prefill_router_gateway.records import HEADER, SESSION_HEADER

_PASSED = (
    *("tools", "functions", "response_format", "text", "instructions", "previous_response_id"),
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "prompt_cache_key", "user"),
)
_ROUTE, _OUTCOME = "/v1/route", "/v1/outcome"
_LONGEST_SESSION = 256
_NO_CHATS = [
    [{"role": "user", "content": text}]
    for text in (
        *("prompt", "default text", "files-api-fake-text", "batch-api-fake-text"),
        "vector-store-api-fake-text",
    )
]
"""Placeholders for the messages in calls that have none, in LiteLLM 1.106 to 1.110."""


@final
@dataclass(frozen=True, kw_only=True)
class LiteLLMRequest:
    """A request to be routed.

    Attributes:
        endpoint: Its endpoint.
        body: The body, as a client would send it.
        session: LiteLLM's name of the conversation; None where none is valid in a header.
    """

    endpoint: Endpoint
    body: bytes
    session: str | None


def read_request(
    messages: Sequence[Any] | None,
    input: Any,  # noqa: A002  LiteLLM's name
    request_kwargs: Mapping[str, Any] | None,
) -> LiteLLMRequest | None:
    """A request to be routed; None where it has no content, or isn't JSON.

    Args:
        messages: The messages of a chat; for images, speech, files and so on, a placeholder text.
        input: The input of the Responses API, or the texts to embed; embeddings aren't routed,
            since vectors of two models can't be compared.
        request_kwargs: LiteLLM's other arguments.
    """
    kwargs = request_kwargs or {}
    endpoint: Endpoint = "chat" if messages else "responses"
    content = list(messages) if messages else input if _calls_responses(kwargs) else None
    if not content or content in _NO_CHATS:
        return None
    further = {name: kwargs[name] for name in _PASSED if kwargs.get(name) is not None}
    field = "messages" if endpoint == "chat" else "input"
    try:
        body = json.dumps({"model": "auto", field: content, **further}, default=_plain)
    except (TypeError, ValueError, RecursionError):
        return None
    return LiteLLMRequest(endpoint=endpoint, body=body.encode(), session=_session_name(kwargs))


def _calls_responses(kwargs: Mapping[str, Any]) -> bool:
    """Whether a call with an input is one of the Responses API; LiteLLM tells by nothing else."""
    # it names the group in `metadata` for embeddings, whose `input` it passes too since 1.110
    metadata = kwargs.get("litellm_metadata")
    return isinstance(metadata, Mapping) and "model_group" in metadata


def failed_before(request_kwargs: Mapping[str, Any] | None) -> Counter[str]:
    """How often each deployment failed on this request, by id; LiteLLM records it on retries."""
    failed: Counter[str] = Counter()
    for part in _metadata(request_kwargs or {}):
        records = part.get("previous_models")
        for record in records if isinstance(records, list | tuple) else ():
            place = record.get("deployment_id") if isinstance(record, Mapping) else None
            if isinstance(place, str):
                failed[place] += 1
    return failed


def _metadata(kwargs: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    parts = (kwargs.get("metadata"), kwargs.get("litellm_metadata"))
    return [part for part in parts if isinstance(part, Mapping)]


def _session_name(kwargs: Mapping[str, Any]) -> str | None:
    names = [kwargs.get("litellm_session_id")]
    names += [part.get("session_id") for part in _metadata(kwargs)]
    for name in names:
        if isinstance(name, str) and name.isascii() and name.isprintable() and name.strip():
            return name.strip()[:_LONGEST_SESSION]
    return None


def _plain(value: object) -> Any:
    """Convert pydantic messages and schemas to JSON; only the presence of a schema matters."""
    if isinstance(value, type):
        return {"type": "json_schema", "json_schema": {"name": value.__name__, "schema": {}}}
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError("not JSON")
    return dump(exclude_none=True)


def check_options(lam: float | None, timeout: float) -> None:
    """Check the trade-off, if one is given, and the time limit.

    Raises:
        ConfigError: One of them is invalid.
    """
    if not (math.isfinite(timeout) and timeout > 0):
        raise ConfigError(f"timeout is {timeout}; it must be a number of seconds above 0")
    if lam is not None:
        check_lam(lam)


_TOO_MANY = 429


@final
class NoDecisionError(PrefillRouterError):
    """There is no decision; the message says why and quotes no prompt and no key."""


@final
class SpentError(PrefillRouterError):
    """The gateway refuses: a budget is spent, or the key has reached a limit.

    Attributes:
        status_code: 429, by which LiteLLM classifies errors.
        num_retries: 0, since retries, as LiteLLM makes after a 429, would fail too.
    """

    status_code = _TOO_MANY
    num_retries = 0


@final
@dataclass(frozen=True, kw_only=True)
class GatewayDecision:
    """A gateway's decision.

    Attributes:
        id: Its id.
        order: The names of the targets that may answer, the chosen one first.
        lam: The trade-off that was used; None where none was.
        targets: For every target of the router its `correctness`, the predicted probability of a
            correct answer, and its `estimated_cost` in US dollars, each None where unknown.
    """

    id: str
    order: tuple[str, ...]
    lam: float | None
    targets: Mapping[str, Mapping[str, float | None]]


@final
class GatewayClient:
    """Calls a gateway's `/v1/route` and `/v1/outcome`.

    Args:
        url: The gateway's URL.
        lam: The trade-off; None for the gateway's setting.
        api_key_env: The environment variable of its key; None for no key.
        seconds: The time limit of a decision.

    Raises:
        ConfigError: The URL isn't valid, the variable isn't set, or its key would be sent over
            plain http to another machine.
    """

    def __init__(
        self, url: str, *, lam: float | None, api_key_env: str | None, seconds: float
    ) -> None:
        self._url = _check_url(url)
        self._headers = {"content-type": "application/json"}
        if lam is not None:
            self._headers[HEADER + "lam"] = f"{lam:g}"
        if api_key_env is not None:
            self._headers["authorization"] = f"Bearer {_read_key(api_key_env)}"
            check_encrypted(self._url, os.environ, whose="the gateway's key")
        self._options: dict[str, Any] = {
            "timeout": seconds,
            # the environment's proxies must not be used for a server on this machine
            "trust_env": not is_loopback(httpx2.URL(self._url).host),
        }
        self._client: httpx2.Client | None = None
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx2.AsyncClient] = (
            weakref.WeakKeyDictionary()
        )

    def order(self, request: LiteLLMRequest) -> tuple[str, ...]:
        """The names of the targets, the chosen one first.

        Raises:
            NoDecisionError: The gateway can't be reached, or returns no decision.
            SpentError: It refuses.
        """
        self._client = self._client or httpx2.Client(**self._options)
        try:
            return _read_decision(
                self._client.post(self._url + _ROUTE, **self._post_options(request))
            ).order
        except httpx2.HTTPError as error:
            raise NoDecisionError(_describe_failure(error)) from None

    async def order_async(self, request: LiteLLMRequest) -> tuple[str, ...]:
        """`order` for an event loop.

        Raises:
            NoDecisionError: As for `order`.
            SpentError: As for `order`.
        """
        return (await self.decide(request)).order

    async def decide(
        self, request: LiteLLMRequest, *, allow: Collection[str] = ()
    ) -> GatewayDecision:
        """The whole decision.

        Args:
            request: The request.
            allow: The only targets that may be chosen; all where it is empty.

        Raises:
            NoDecisionError: As for `order`.
            SpentError: As for `order`.
        """
        options = self._post_options(request)
        if allow:
            options["headers"] |= {HEADER + "allow": ",".join(sorted(allow)).encode()}
        return _read_decision(await self._post(_ROUTE, **options))

    async def report(self, outcome: Mapping[str, Any]) -> None:
        """Tell what came of a decision, as `/v1/outcome` takes it.

        Raises:
            NoDecisionError: The gateway can't be reached, or doesn't take it. An outcome that it
                knows already is no error.
        """
        body = json.dumps({name: value for name, value in outcome.items() if value is not None})
        reply = await self._post(_OUTCOME, content=body.encode(), headers=self._headers)
        if reply.status_code not in (httpx2.codes.OK, httpx2.codes.CONFLICT):
            raise NoDecisionError(_describe_refusal(reply))

    async def _post(self, path: str, **options: Any) -> httpx2.Response:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:  # connections belong to the loop in which they were opened
            client = self._clients[loop] = httpx2.AsyncClient(**self._options)
        try:
            return await client.post(self._url + path, **options)
        except httpx2.HTTPError as error:
            raise NoDecisionError(_describe_failure(error)) from None

    async def aclose(self) -> None:
        """Close the connections of this loop, and those of `order`."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()
        self.close()

    def close(self) -> None:
        """Close the connections of `order`."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _post_options(self, request: LiteLLMRequest) -> dict[str, Any]:
        session = {} if request.session is None else {SESSION_HEADER: request.session}
        return {"content": request.body, "headers": {**self._headers, **session}}


def _describe_failure(error: httpx2.HTTPError) -> str:
    return f"the gateway can't be reached ({type(error).__name__})"


def _describe_refusal(reply: httpx2.Response) -> str:
    error = _json(reply).get("error")
    code = error.get("code") if isinstance(error, dict) else None
    named = f" ({code})" if isinstance(code, str) else ""
    return f"the gateway's response has status {reply.status_code}{named}"


def _read_decision(reply: httpx2.Response) -> GatewayDecision:
    if reply.status_code == _TOO_MANY:
        raise SpentError("the gateway refuses: a budget is spent, or its key has reached a limit")
    if reply.status_code != httpx2.codes.OK:
        raise NoDecisionError(_describe_refusal(reply))
    decision = _json(reply)
    order = decision.get("order")
    if not isinstance(order, list) or not order or not all(isinstance(n, str) for n in order):
        raise NoDecisionError("the gateway's response has no order of targets")
    rows = decision.get("targets")
    pairs = rows.items() if isinstance(rows, dict) else ()
    return GatewayDecision(
        id=str(decision.get("id", "")),
        order=tuple(order),
        lam=decision.get("lam"),
        targets={name: row for name, row in pairs if isinstance(row, dict)},
    )


def _json(reply: httpx2.Response) -> dict[str, Any]:
    try:
        value = json.loads(reply.content)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _check_url(url: str) -> str:
    try:
        parts = httpx2.URL(url)
    except httpx2.InvalidURL:
        parts = httpx2.URL()
    if parts.scheme not in ("http", "https") or not parts.host or parts.userinfo:
        raise ConfigError(
            "the gateway's address must be http:// or https:// and a host without a password, for "
            "example http://127.0.0.1:8080"
        )
    return url.rstrip("/").removesuffix("/v1")


def _read_key(variable: str) -> str:
    key = os.environ.get(variable, "")
    if not key.strip() or not key.isascii() or not key.isprintable():
        raise ConfigError(
            "the environment variable in api_key_env isn't set, is empty, or has characters that a "
            "header can't have; set it to the gateway's key"
        )
    return key.strip()
