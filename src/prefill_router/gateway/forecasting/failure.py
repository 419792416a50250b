"""What goes wrong with forecasts."""

from typing import final

from prefill_router.errors import PrefillRouterError
from prefill_router.gateway.words import FallbackReason


@final
class NoForecastError(PrefillRouterError):
    """There is no forecast of a request, or not in time.

    Attributes:
        reason: Why.
    """

    def __init__(self, reason: FallbackReason) -> None:
        super().__init__(f"there is no forecast of this request: {reason}")
        self.reason: FallbackReason = reason


@final
class WorkerGoneError(PrefillRouterError):
    """The encoder's process ended, hangs, or says what makes no sense."""
