"""The requests that ended lately, in memory, for what is looked at every second."""

import time
from collections import deque
from collections.abc import Iterable
from typing import final

from prefill_router.gateway.receipts import Receipt

_MOST = 2000
_HOUR, _MINUTE = 3600, 60


@final
class Recent:
    """The latest receipts, the newest last, and how many requests came in the last hour."""

    def __init__(self) -> None:
        self._ended: deque[tuple[int, Receipt]] = deque(maxlen=_MOST)
        self._minutes: deque[tuple[int, int]] = deque()
        self._number = 0
        self._process = f"{time.time_ns():x}"

    def add(self, receipt: Receipt) -> None:
        """A request has ended."""
        self._number += 1
        self._ended.append((self._number, receipt))
        minute = int(receipt.at // _MINUTE)
        held, count = self._minutes[-1] if self._minutes else (minute, 0)
        if held >= minute and self._minutes:  # it came before what ended already
            self._minutes[-1] = (held, count + 1)
            return
        self._minutes.append((minute, 1))
        while self._minutes[0][0] <= minute - _HOUR // _MINUTE:
            self._minutes.popleft()

    def fill(self, receipts: Iterable[Receipt]) -> None:
        """Remember what was kept before, oldest first."""
        for receipt in receipts:
            self.add(receipt)

    @property
    def cursor(self) -> str:
        """What names the present end, in this process alone."""
        return f"{self._process}-{self._number}"

    def since(self, cursor: str | None, limit: int) -> list[Receipt]:
        """What ended since, or lately where the cursor isn't known: the newest first."""
        process, _, place = (cursor or "").partition("-")
        known = process == self._process and place.isascii() and place.isdigit()
        after = int(place) if known else 0
        found: list[Receipt] = []
        for number, receipt in reversed(self._ended):
            if number <= after or len(found) == limit:
                break
            found.append(receipt)
        return found

    def find(self, name: str) -> Receipt | None:
        """The receipt of a decision; None where it isn't among the latest."""
        return next((r for _, r in reversed(self._ended) if r.choice.id == name), None)

    def all(self) -> list[Receipt]:
        """All that are remembered, oldest first."""
        return [receipt for _, receipt in self._ended]

    def last_hour(self) -> tuple[float, list[Receipt]]:
        """Those of the last hour that are remembered, oldest first, and from when on all are."""
        since = time.time() - _HOUR
        if len(self._ended) == _MOST:
            since = max(since, self._ended[0][1].at)
        return since, [receipt for _, receipt in self._ended if receipt.at >= since]

    def requests_last_hour(self) -> int:
        """How many requests came in the last hour, to the minute."""
        since = int(time.time() // _MINUTE) - _HOUR // _MINUTE
        return sum(count for minute, count in self._minutes if minute > since)
