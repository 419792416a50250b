"""The process that encodes: `python -m prefill_router_gateway.forecast.encoder_program`.

Its first frame says what to load. It sends its first message once it is warm, and then answers each
frame with one, until its standard input ends. One bad prompt in a batch doesn't affect the others.
Its log never has any part of a prompt.
"""

import faulthandler
import logging
import os
import re
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, BinaryIO

from prefill_router.data import Prompt
from prefill_router.errors import CorruptError, PrefillRouterError, PromptError, UpstreamError
from prefill_router.remote import location
from prefill_router.router import Router, fingerprint
from prefill_router_gateway.forecast.encoder_process import (
    EncoderHello,
    ForecastResult,
    pack_frame,
    plain_result,
    read_frame,
    read_prompt,
    sources_of,
)
from prefill_router_gateway.forecast.shared_encoder import serve_clients

_log = logging.getLogger(__name__)
_PLACE = re.compile(r"request (\d+)")
# What libraries raise on a prompt that they can't handle, or when memory runs out.
_FAILURES = (
    PrefillRouterError,
    RuntimeError,
    MemoryError,
    ValueError,
    TypeError,
    LookupError,
    OSError,
)


def forecast_each(router: Router, prompts: Sequence[Prompt]) -> list[ForecastResult]:
    """Forecast prompts, encoded together; a reason takes the place of a forecast that failed.

    A prompt that can't be encoded is left out and the others are tried again. After any other
    failure they are encoded one by one.
    """
    results: list[ForecastResult] = ["unreadable"] * len(prompts)
    left = list(range(len(prompts)))
    while left:
        try:
            forecasts = router.forecast_many([prompts[i] for i in left])
        except PromptError as error:
            place = _find_place(error, len(left))
            if place is None:
                return [_forecast_alone(router, prompt) for prompt in prompts]
            del left[place]
        except _FAILURES as error:
            _log.warning("a batch of %d failed: %s", len(left), type(error).__name__)
            for i in left:
                results[i] = _forecast_alone(router, prompts[i])
            return results
        else:
            for i, forecast in zip(left, forecasts, strict=True):
                results[i] = forecast
            return results
    return results


def prepare_encoders(router: Router, *, threads: int, reuse_bytes: int) -> Router:
    """The router with encoders that read several prompts at once, and reuse shared prefixes.

    On a GPU they are as they were: batches gain more there.

    Args:
        router: The router.
        threads: Prompts that are read at once on a processor, each by one thread; a prompt that
            is alone has them all.
        reuse_bytes: The limit of each encoder's cache of prefixes; 0 for none.
    """
    encoders = [router.encoder(provenance) for provenance in router.features.provenances]
    if reuse_bytes:
        encoders = [encoder.with_prefix_cache(most_bytes=reuse_bytes) for encoder in encoders]
    loaded = tuple(encoder.with_workers(threads) for encoder in encoders)
    return router.with_sources(replace(router.sources, loaded=loaded))


def still_works(router: Router) -> bool:
    """Whether an ordinary prompt can be encoded; a GPU that failed once, say, can't any more."""
    try:
        router.forecast_many(["How are you?"])
    except _FAILURES as error:
        _log.warning("an ordinary prompt failed too: %s", type(error).__name__)
        return False
    return True


def _forecast_alone(router: Router, prompt: Prompt) -> ForecastResult:
    try:
        return router.forecast_many([prompt])[0]
    except PromptError:
        return "unreadable"
    except UpstreamError as error:
        _log.warning("the encoder's endpoint failed: %s", error.failure)
        return "encoder_down"
    except _FAILURES as error:
        _log.warning("a prompt failed: %s", type(error).__name__)
        return "unreadable"


def _find_place(error: PromptError, count: int) -> int | None:
    """The position in the batch of the prompt that failed, from 0; None where unknown."""
    named = _PLACE.fullmatch(error.query_id)
    place = None if named is None else int(named[1]) - 1
    return place if place is not None and 0 <= place < count else None


_LONG = "Which of these words comes first in the alphabet? " * 66
_WARM_UP = ("How are you?", _LONG, _LONG)
_BROKEN = 3


def main() -> int:
    """Serve; returns the exit status."""
    source, sink = sys.stdin.buffer, _take_output()
    faulthandler.enable()
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.INFO)
    options = read_frame(source)
    if options is None:
        return 0
    try:
        router, hello = _load(options)
    except PrefillRouterError as error:
        _send(sink, {"error": str(error)})
        return 1
    sys.excepthook = _log_without_message
    _send(sink, hello.to_dict())
    if "socket" in options:
        place = socket.socket(fileno=options["socket"])
        works = serve_clients(
            place,
            source,
            hello,
            partial(_forecast, router),
            works=partial(still_works, router),
            most=options["most_prompts"],
        )
        return 0 if works else _BROKEN
    return _serve(router, source, sink)


def _serve(router: Router, source: BinaryIO, sink: BinaryIO) -> int:
    while (request := read_frame(source)) is not None:
        results, seconds = _forecast(router, request["prompts"])
        _send(sink, {"found": results, "seconds": seconds})
        if all(isinstance(result, str) for result in results) and not still_works(router):
            return _BROKEN
    return 0


def _forecast(router: Router, prompts: Sequence[Any]) -> tuple[list[Any], float]:
    """The results of prompts as plain values, and the seconds that they took."""
    began = time.perf_counter()
    results = forecast_each(router, [read_prompt(prompt) for prompt in prompts])
    return [plain_result(result) for result in results], time.perf_counter() - began


def _threads(options: dict[str, Any]) -> int:
    """The number of threads that encoders compute with."""
    chosen: int | None = options["threads"]
    if chosen is not None:
        return chosen
    from prefill_router.encoders import default_threads

    gateways: int = options.get("gateways", 1)  # each needs a core
    return max(1, default_threads() - gateways)


def _load(options: dict[str, Any]) -> tuple[Router, EncoderHello]:
    """The warm router and its first message."""
    began = time.perf_counter()
    folder = location(options["router"])
    before = ""
    with suppress(OSError):  # loading reports what is missing
        before = fingerprint(folder)
    threads = _threads(options)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # encoders read it when they are loaded
    router = Router.load(folder, sources=sources_of(options))
    if fingerprint(folder) != before:
        raise CorruptError(f"{folder} was replaced while it was being loaded; load it again")
    router.forecast_many(_WARM_UP[:1])  # loads the networks
    torch = sys.modules.get("torch")
    if torch is not None:  # a router without a network needs none, and importing it takes seconds
        torch.set_num_threads(threads)
    router = prepare_encoders(router, threads=threads, reuse_bytes=options["reuse_bytes"])
    for prompt in _WARM_UP:
        started = time.perf_counter()
        router.forecast_many([prompt])
    ended = time.perf_counter()
    hello = EncoderHello(
        fingerprint=before,
        targets=router.pool.names,
        encoders=tuple(dict.fromkeys(p.encoder for p in router.features.provenances)),
        seconds=ended - began,
        prompt_seconds=ended - started,
    )
    return router, hello


def _take_output() -> BinaryIO:
    """Standard output for frames alone; whatever libraries print goes to standard error."""
    sys.stdout.flush()
    own = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return os.fdopen(own, "wb")


def _send(sink: BinaryIO, value: Any) -> None:
    sink.write(pack_frame(value))
    sink.flush()


def _log_without_message(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Log the type and place of an unexpected error; its message might quote a prompt."""
    del error
    frames = [f"{f.filename}:{f.lineno}" for f in traceback.extract_tb(trace)]
    logging.getLogger(__name__).error("%s at %s", kind.__name__, ", ".join(frames))


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    os._exit(status)  # an orderly shutdown of torch takes seconds, and nothing is left to save
