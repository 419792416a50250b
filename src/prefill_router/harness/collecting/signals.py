"""Being told to end while an event loop runs: what is under way is given up, once, in order."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Cancel the current task at the first interruption or termination; more change nothing.

    Elsewhere than in the main thread, and where there are no such signals, it does nothing.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    if task is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    told: list[int] = []

    def end(number: int) -> None:
        if not told:
            task.cancel()
        told.append(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        for number in _SIGNALS:
            loop.add_signal_handler(number, end, number)
    except NotImplementedError:  # on Windows
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
