"""The server of small models: the ASGI application, its thread in this process, and its log.

It listens on loopback by default. `serve_pool` serves the models of the tiny pool, and
`describe_pool` makes the pool to give to whoever asks them.
"""

import asyncio
import dataclasses
import hmac
import itertools
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, final

from prefill_router import targets
from prefill_router.errors import ConfigError
from prefill_router.lazy_imports import optional_imports
from prefill_router.targets import Pool, Provider, RequestOptions
from prefill_router_minipool.pool_models import NAMES, folder_of, pool
from prefill_router_minipool.server.answer import (
    AnswerTask,
    AsgiConnection,
    CutOffError,
    DisconnectedError,
    Receive,
    Send,
)
from prefill_router_minipool.server.effort import SAMPLES
from prefill_router_minipool.server.faults import FaultInjector, Faults
from prefill_router_minipool.server.generation import Delivery, Model, Worker
from prefill_router_minipool.server.protocol import ApiError, Endpoint, read_request


@final
@dataclass(frozen=True, kw_only=True)
class Record:
    """The true record of one request, even where the reply says otherwise.

    Attributes:
        model: The model that was asked.
        prompt: The text of the last turn.
        prompt_tokens: Input tokens; 0 where the request was refused.
        completion_tokens: Output tokens, those of reasoning included: what is billed.
        reasoning_tokens: The part of them that was reasoning.
        faults: The injected faults, in the order of the rules.
        status: The HTTP status; 0 where the client left before there was one.
        complete: Whether the whole reply was sent; False where a fault cut it off in any way.
        stream: Whether the reply was streamed.
        options: The request's other fields.
        seconds: The time from the request to the end of the reply.
    """

    model: str
    prompt: str
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    faults: tuple[str, ...]
    status: int
    complete: bool
    stream: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    seconds: float

    @property
    def fault(self) -> str | None:
        """The faults as one text, such as `slow+break`; None where nothing went wrong."""
        return "+".join(self.faults) or None


@final
@dataclass(frozen=True, kw_only=True)
class Stats:
    """Sums since the server was started.

    Attributes:
        requests: Requests for an answer that have ended in any way.
        answers: Requests that were answered in full.
        prompt_tokens: Input tokens.
        completion_tokens: Output tokens of the replies, made-up reasoning included.
        generated_tokens: Tokens that the models generated.
        busy_seconds: Seconds that the worker spent generating.
        batches: Batches that it generated.
        in_flight: Requests that are being answered now.
        waiting: Requests in flight that are in no batch yet.
        faults: The number of injected faults, by kind.
        seconds: Seconds since the start.
    """

    requests: int
    answers: int
    prompt_tokens: int
    completion_tokens: int
    generated_tokens: int
    busy_seconds: float
    batches: int
    in_flight: int
    waiting: int
    faults: Mapping[str, int]
    seconds: float


@final
class RequestLog:
    """The records of requests, in the order of their ends, and their sums."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.answers = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.faults: Counter[str] = Counter()

    def add(self, record: Record) -> None:
        """Add a record."""
        self.records.append(record)
        self.answers += record.complete and record.status == 200
        self.prompt_tokens += record.prompt_tokens
        self.completion_tokens += record.completion_tokens
        self.faults.update(record.faults)


_ENDPOINTS: dict[str, Endpoint] = {"/v1/chat/completions": "chat", "/v1/completions": "text"}
_READ_PATHS = ("/health", "/stats", "/v1/models")


@final
class App:
    """Serves models over the OpenAI protocol.

    Args:
        models: The models, with distinct names.
        faults: The faults to inject, and the dialect of each model.
        api_key: The key that requests must have; None for no key.
        max_batch: Most answers in one batch.
    """

    def __init__(
        self, models: Sequence[Model], *, faults: Faults, api_key: str | None, max_batch: int
    ) -> None:
        self._models = {model.name: model for model in models}
        self._faults = faults
        self._injector = FaultInjector(faults)
        self._key = None if api_key is None else f"Bearer {api_key}".encode()
        self._numbers = itertools.count()
        self._clients: set[AsgiConnection] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = time.monotonic()
        self.log = RequestLog()
        self.worker = Worker(
            models, max_batch=max_batch, deliver=self._pass_on, ended=self._leave_all
        )

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Handle one request."""
        self._loop = asyncio.get_running_loop()
        client = AsgiConnection(receive, send)
        try:
            await self._route(scope, client)
        except ApiError as error:
            await client.reply(error.status, error.body, error.headers)

    def stats(self) -> Stats:
        """The sums so far."""
        return Stats(
            requests=len(self.log.records),
            answers=self.log.answers,
            prompt_tokens=self.log.prompt_tokens,
            completion_tokens=self.log.completion_tokens,
            generated_tokens=self.worker.tokens,
            busy_seconds=self.worker.busy_seconds,
            batches=self.worker.batches,
            in_flight=len(self._clients),
            waiting=self.worker.waiting,
            faults=dict(self.log.faults),
            seconds=time.monotonic() - self._started,
        )

    async def _route(self, scope: dict[str, Any], client: AsgiConnection) -> None:
        path, method = scope["path"], scope["method"]
        if endpoint := _ENDPOINTS.get(path):
            _allow(method, "POST")
            self._check_key(scope)
            await self._answer(client, endpoint)
            return
        if path not in _READ_PATHS and not path.startswith("/v1/models/"):
            raise ApiError(f"no such path; there are {', '.join(_ENDPOINTS)}", status=404)
        _allow(method, "GET")
        if path == "/health":
            await self._send_health(client)
        elif path == "/stats":
            await client.reply(200, dataclasses.asdict(self.stats()))
        elif path == "/v1/models":
            self._check_key(scope)
            rows = [_describe_model(model) for model in self._models.values()]
            await client.reply(200, {"object": "list", "data": rows})
        else:
            self._check_key(scope)
            model = self._find_model(path.removeprefix("/v1/models/"))
            await client.reply(200, _describe_model(model))

    async def _send_health(self, client: AsgiConnection) -> None:
        is_alive = self.worker.alive
        status = "ok" if is_alive else "the worker has stopped"
        health = {"status": status, "models": list(self._models)}
        await client.reply(200 if is_alive else 503, health)

    def _check_key(self, scope: dict[str, Any]) -> None:
        if self._key is None:
            return
        credential = next((v for k, v in scope["headers"] if k == b"authorization"), b"")
        if not hmac.compare_digest(credential, self._key):
            raise ApiError(
                "Incorrect API key provided.",
                status=401,
                kind="authentication_error",
                code="invalid_api_key",
            )

    def _find_model(self, name: str) -> Model:
        if name not in self._models:
            raise ApiError(
                f"The model `{name}` does not exist; there are {', '.join(self._models)}.",
                status=404,
                param="model",
                code="model_not_found",
            )
        return self._models[name]

    async def _answer(self, client: AsgiConnection, endpoint: Endpoint) -> None:
        started = time.monotonic()
        try:
            request = read_request(await client.body(), endpoint)
        except DisconnectedError:
            return
        model = self._find_model(request.model)
        if not self.worker.alive:
            raise ApiError("the worker has stopped", status=503, kind="server_error")
        effects, wait = self._injector.next(model.name, request.text, request.options)
        answer = AnswerTask(
            request=request,
            model=model,
            persona=self._faults.persona_of(model.name),
            effects=effects,
            wait=wait,
            submit=self.worker.submit,
            number=next(self._numbers),
        )
        self._clients.add(client)
        client.at_end(lambda: self._close(answer, client, time.monotonic() - started))
        try:
            await answer.give(client)
        except ApiError as error:
            await client.reply(error.status, error.body, error.headers)
        except (CutOffError, DisconnectedError):
            return  # uvicorn closes the connection of an incomplete reply
        finally:
            client.close()

    def _close(self, answer: AnswerTask, client: AsgiConnection, seconds: float) -> None:
        answer.end()
        self._clients.discard(client)
        request = answer.request
        self.log.add(
            Record(
                model=request.model,
                prompt=request.text,
                prompt_tokens=answer.prompt_tokens,
                completion_tokens=answer.completion_tokens,
                reasoning_tokens=answer.thoughts,
                faults=tuple(answer.effects),
                status=client.status,
                complete=client.complete,
                stream=request.stream,
                options=request.options,
                seconds=seconds,
            )
        )

    def _pass_on(self, delivery: Delivery) -> None:
        """Pass a step's tokens from the worker's thread to the event loop."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(_hand_out, delivery)

    def _leave_all(self) -> None:
        """Abandon all connections, since the worker has ended."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._abandon)

    def _abandon(self) -> None:
        for client in list(self._clients):
            client.leave()


def _hand_out(delivery: Delivery) -> None:
    for job, piece, last in delivery:
        job.deliver(piece, last)


def _allow(method: str, allowed: str) -> None:
    if method != allowed and not (allowed == "GET" and method == "HEAD"):
        raise ApiError(
            f"this path takes {allowed}", status=405, headers=[(b"allow", allowed.encode())]
        )


def _describe_model(model: Model) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "minipool",
        "context_length": model.context,
    }


LOOPBACK = "127.0.0.1"
_KEEP_ALIVE = 300  # seconds; longer than clients keep idle connections, so that they close them
_PATIENCE = 3  # seconds that replies have to end when the server is stopped


@final
class Server:
    """A running server.

    Attributes:
        base_url: The base URL for clients, such as `http://127.0.0.1:8123/v1`.
        url: The same without `/v1`, for `/health` and `/stats`.
    """

    def __init__(self, app: App, *, host: str, port: int) -> None:
        self._app = app
        address = f"[{host}]" if ":" in host else host
        self.url = f"http://{address}:{port}"
        self.base_url = f"{self.url}/v1"

    @property
    def log(self) -> list[Record]:
        """The records of all requests that have ended, refused ones included, in that order."""
        return list(self._app.log.records)

    def stats(self) -> Stats:
        """The sums so far."""
        return self._app.stats()


@contextmanager
def serve(
    models: Sequence[Model],
    *,
    faults: Faults | None = None,
    port: int = 0,
    host: str = LOOPBACK,
    api_key: str | None = None,
    max_batch: int = 64,
) -> Iterator[Server]:
    """Serve models until the block ends.

    Args:
        models: The models, with distinct names.
        faults: The faults to inject, and the dialect of each model; by default none, and OpenAI's.
        port: The port to listen on; 0 picks a free one.
        host: The address to listen on.
        api_key: The key that requests must have; None for no key.
        max_batch: Most answers that are generated at once.

    Raises:
        ConfigError: There is no model, two have the same name, a fault names another model, or
            the port can't be used.
    """
    names = [model.name for model in models]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"models named {names} can't be served; give one or more, all different")
    all_faults = faults or Faults()
    all_faults.check_models(names)
    listener = _listen(host, port)
    app = App(models, faults=all_faults, api_key=api_key, max_batch=max_batch)
    runner = _make_runner(app)
    thread = threading.Thread(
        target=runner.run, kwargs={"sockets": [listener]}, name="minipool-server", daemon=True
    )
    app.worker.start()
    thread.start()
    try:
        yield Server(app, host=host, port=listener.getsockname()[1])
    finally:
        app.worker.stop()
        runner.should_exit = True
        thread.join()
        listener.close()


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket; requests before the server has started wait in its backlog."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm only for sockets with an explicit protocol
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, OverflowError) as error:
        listener.close()
        raise ConfigError(
            f"can't listen on {host} port {port}: {error}; name another with --port, or 0 for a "
            "free one"
        ) from None
    return listener


def _make_runner(app: App) -> Any:
    with optional_imports("serving the tiny models"):
        import uvicorn

    logging.getLogger("uvicorn.error").addFilter(_is_not_cut_off)
    config = uvicorn.Config(
        app,
        loop="asyncio",  # the same with or without uvicorn's optional parts
        http="h11",
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=_PATIENCE,
    )
    return uvicorn.Server(config)


def _is_not_cut_off(record: logging.LogRecord) -> bool:
    """A log filter that drops errors about replies that a fault cut off."""
    return "without completing response" not in str(record.msg)


_CONCURRENCY = 64
_SERVES: tuple[targets.Endpoint, ...] = ("chat", "completions")
_MOST_TOKENS = 64  # several times the longest right answer


@contextmanager
def serve_pool(
    names: Sequence[str] | None = None,
    *,
    faults: Faults | None = None,
    port: int = 0,
    host: str = LOOPBACK,
    api_key: str | None = None,
    max_batch: int = 64,
) -> Iterator[Server]:
    """Serve the tiny pool's targets until the block ends.

    Args:
        names: The targets; all by default.
        faults: The faults to inject, and the dialect of each model; by default none, and OpenAI's.
        port: The port to listen on; 0 picks a free one.
        host: The address to listen on.
        api_key: The key that requests must have; None for no key.
        max_batch: Most answers that are generated at once.

    Raises:
        ConfigError: There is no such target, or the port can't be used.
    """
    from prefill_router_minipool.server.engine import LocalModel

    model_names = NAMES if names is None else names
    models = [LocalModel(folder_of(name), name=name) for name in model_names]
    with serve(
        models, faults=faults, port=port, host=host, api_key=api_key, max_batch=max_batch
    ) as server:
        yield server


def describe_pool(
    server: Server,
    *,
    names: Sequence[str] | None = None,
    efforts: Sequence[str] = (),
    api_key_env: str | None = None,
) -> Pool:
    """The pool of a server of the tiny pool: endpoint, prices, and request parameters.

    Args:
        server: The running server.
        names: The targets that it serves; all by default.
        efforts: The efforts of each of them, of `SAMPLES`; none for one target each.
        api_key_env: The environment variable that holds its key.

    Raises:
        ConfigError: There is no such target or effort.
    """
    base_pool = pool()
    provider = Provider(
        name="minipool",
        base_url=server.base_url,
        api_key_env=api_key_env,
        concurrency=_CONCURRENCY,
    )
    most = _MOST_TOKENS * max((SAMPLES.get(effort, 1) for effort in efforts), default=1)
    request = RequestOptions(max_tokens=most, temperature=0.0)
    pool_targets = tuple(
        replace(target, provider=provider.name, request=request, serves=_SERVES)
        for target in base_pool.select(NAMES if names is None else names)
    )
    if efforts:
        pairs = itertools.product(pool_targets, efforts)
        pool_targets = tuple(target.with_effort(effort) for target, effort in pairs)
    return Pool(pool_targets, base_pool.prices_date, (provider,))
