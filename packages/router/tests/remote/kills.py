"""Ends a writer right before one of its changes at a URL, as a kill would."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from prefill_router.remote import RemotePath

CHANGES = ("put", "exchange", "remove")


class KilledError(BaseException):
    """Not an Exception, so no handler catches it."""


@contextmanager
def kill_before(step: int) -> Iterator[None]:
    """Raise before the `step`-th change."""
    steps_left = step

    def count_change(change: Callable[..., object]) -> Callable[..., object]:
        def change_or_die(*arguments: object) -> object:
            nonlocal steps_left
            steps_left -= 1
            if steps_left == 0:
                raise KilledError
            return change(*arguments)

        return change_or_die

    changes = {name: count_change(getattr(RemotePath, name)) for name in CHANGES}
    with mock.patch.multiple(RemotePath, **changes):
        yield


def kills(write: Callable[[], object]) -> Iterator[int]:
    """Repeat a write, killed before its first change, its second and so on, until it ends well.

    After each kill, and at the end, it yields the step; 0 at the end.
    """
    step = 0
    while True:
        step += 1
        try:
            with kill_before(step):
                write()
        except KilledError:
            yield step
        else:
            yield 0
            return
