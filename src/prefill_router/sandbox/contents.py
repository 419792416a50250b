"""Contents that a run is given, as files in memory: nothing is left on a disk."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager


@contextmanager
def in_memory(contents: Mapping[str, bytes]) -> Iterator[dict[str, int]]:
    """Yield a descriptor for each content, at its beginning; all are closed afterwards."""
    with ExitStack() as opened:
        descriptors = {}
        for name, content in contents.items():
            file = opened.enter_context(os.fdopen(os.memfd_create("sandbox"), "w+b"))
            file.write(content)
            file.seek(0)
            descriptors[name] = file.fileno()
        yield descriptors
