"""Ends a writer right before one of its changes at a URL, as a kill would."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from prefill_router.remote import RemotePath

CHANGES = ("put", "exchange", "remove")


class KilledError(BaseException):
    """No handler of errors sees it."""


@contextmanager
def killed_before(step: int) -> Iterator[None]:
    """Raise before the `step`-th change."""
    left = step

    def counted(change: Callable[..., object]) -> Callable[..., object]:
        def ended(*arguments: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                raise KilledError
            return change(*arguments)

        return ended

    changes = {name: counted(getattr(RemotePath, name)) for name in CHANGES}
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
            with killed_before(step):
                write()
        except KilledError:
            yield step
        else:
            yield 0
            return
