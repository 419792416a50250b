"""User ids for runs that are started by root: each run that lives has one of its own."""

import itertools
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from prefill_router.errors import SandboxError

FIRST_UID = 61184
UIDS = 1024
"""Beginning where systemd draws its passing users from; no account of Debian has one of these."""

_starts = itertools.count()


@contextmanager
def leased_uid() -> Iterator[int]:
    """Yield a user id that no other run has, neither of this process nor of another.

    What holds it is an abstract Unix address: the kernel gives it to one holder and takes it back
    when that process ends, however it ends.

    Raises:
        SandboxError: All are taken.
    """
    start = os.getpid() * 61 + next(_starts)
    for step in range(UIDS):
        uid = FIRST_UID + (start + step) % UIDS
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as holder:
            try:
                holder.bind(f"\0prefill-router/sandbox/{uid}")
            except OSError:
                continue
            yield uid
            return
    raise SandboxError(f"all {UIDS} user ids of the sandbox are taken; run fewer programs at once")
