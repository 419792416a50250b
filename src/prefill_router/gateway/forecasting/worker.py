"""The process that encodes: `python -m prefill_router.gateway.forecasting.worker`.

It is told what to load in its first frame, greets once it is warm, then answers one frame with one
until its standard input ends. Nothing of a prompt ever goes to its log.
"""

import faulthandler
import logging
import os
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from prefill_router.errors import CorruptError, PrefillRouterError
from prefill_router.gateway.forecasting.exchange import (
    Hello,
    plain_found,
    prompt_of,
    sources_of,
)
from prefill_router.gateway.forecasting.frames import pack, read
from prefill_router.gateway.forecasting.reading import (
    forecast_each,
    reusing_beginnings,
    still_works,
)
from prefill_router.router import Router
from prefill_router.router.storage import fingerprint

_LONG = "Which of these words comes first in the alphabet? " * 66
_WARM_UP = ("How are you?", _LONG, _LONG)
_BROKEN = 3


def main() -> int:
    """Serve; returns the exit status."""
    source, sink = sys.stdin.buffer, _own_output()
    faulthandler.enable()
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.INFO)
    options = read(source)
    if options is None:
        return 0
    try:
        router, hello = _load(options)
    except PrefillRouterError as error:
        _send(sink, {"error": str(error)})
        return 1
    sys.excepthook = _tell_without_words
    _send(sink, hello.to_dict())
    return _serve(router, source, sink)


def _serve(router: Router, source: BinaryIO, sink: BinaryIO) -> int:
    while (asked := read(source)) is not None:
        begun = time.perf_counter()
        found = forecast_each(router, [prompt_of(prompt) for prompt in asked["prompts"]])
        seconds = time.perf_counter() - begun
        _send(sink, {"found": [plain_found(one) for one in found], "seconds": seconds})
        if all(isinstance(one, str) for one in found) and not still_works(router):
            return _BROKEN
    return 0


def _load(options: dict[str, Any]) -> tuple[Router, Hello]:
    """The router, warm, and what is said of it."""
    begun = time.perf_counter()
    folder = Path(options["router"])
    before = ""
    with suppress(OSError):  # what is missing is told better when it is loaded
        before = fingerprint(folder)
    router = Router.load(folder, sources=sources_of(options))
    if fingerprint(folder) != before:
        raise CorruptError(f"{folder} was replaced while it was being read; load it again")
    router.forecast_many(_WARM_UP[:1])  # loads the networks
    _use_threads(options["threads"])
    if options["reuse_bytes"]:
        router = reusing_beginnings(router, options["reuse_bytes"])
    for prompt in _WARM_UP:
        started = time.perf_counter()
        router.forecast_many([prompt])
    ended = time.perf_counter()
    hello = Hello(
        fingerprint=before,
        targets=router.pool.names,
        encoders=tuple(dict.fromkeys(p.encoder for p in router.features.provenances)),
        seconds=ended - begun,
        prompt_seconds=ended - started,
    )
    return router, hello


def _use_threads(threads: int | None) -> None:
    torch = sys.modules.get("torch")
    if torch is None:  # a router without a network needs none, and importing it takes seconds
        return
    torch.set_num_threads(max(1, torch.get_num_threads() - 1) if threads is None else threads)


def _own_output() -> BinaryIO:
    """Standard output, for frames alone: what libraries print goes to standard error."""
    sys.stdout.flush()
    own = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return os.fdopen(own, "wb")


def _send(sink: BinaryIO, value: Any) -> None:
    sink.write(pack(value))
    sink.flush()


def _tell_without_words(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Log an unexpected error's kind and place; its message might quote a prompt."""
    del error
    frames = [f"{f.filename}:{f.lineno}" for f in traceback.extract_tb(trace)]
    logging.getLogger(__name__).error("%s at %s", kind.__name__, ", ".join(frames))


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    os._exit(status)  # taking torch down in good order takes seconds, and nothing is left to keep
