"""Forecasts of prompts that came lately."""

from collections import OrderedDict
from typing import final

from prefill_router.router.forecast import Forecast


@final
class Memory:
    """Forecasts by the key of their prompt; the one that was asked for longest ago goes first.

    Args:
        entries: So many are kept; 0 for none.
    """

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._held: OrderedDict[str, Forecast] = OrderedDict()
        self.hits = 0

    def get(self, key: str) -> Forecast | None:
        """The forecast of this prompt, if it is still known."""
        held = self._held.get(key)
        if held is not None:
            self._held.move_to_end(key)
            self.hits += 1
        return held

    def put(self, key: str, forecast: Forecast) -> None:
        """Keep a forecast."""
        if not self._entries:
            return
        self._held[key] = forecast
        self._held.move_to_end(key)
        if len(self._held) > self._entries:
            self._held.popitem(last=False)
