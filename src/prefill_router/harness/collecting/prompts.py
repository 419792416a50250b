"""The prompts of a run's tasks, read some ahead, since they are asked in order."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import final

from prefill_router.data import Prompt
from prefill_router.harness.runs.run import Run

_AT_ONCE = 128
_KEPT = 32
"""Parts; providers may be at different places."""


@final
class Prompts:
    """The prompts of these tasks.

    Args:
        run: Where they are.
        ids: The tasks, in the order in which they are asked.
    """

    def __init__(self, run: Run, ids: Sequence[str]) -> None:
        self._run, self._ids = run, ids
        self._place = {query_id: place for place, query_id in enumerate(ids)}
        self._parts: OrderedDict[int, list[Prompt]] = OrderedDict()

    def __getitem__(self, query_id: str) -> Prompt:
        number, place = divmod(self._place[query_id], _AT_ONCE)
        if number not in self._parts:
            wanted = self._ids[number * _AT_ONCE : (number + 1) * _AT_ONCE]
            self._parts[number] = [query.prompt for query in self._run.queries(wanted)]
            if len(self._parts) > _KEPT:
                self._parts.popitem(last=False)
        self._parts.move_to_end(number)
        return self._parts[number][place]
