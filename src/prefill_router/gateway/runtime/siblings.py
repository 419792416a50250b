"""The other workers of a gateway, as one worker sees them."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from prefill_router.gateway.telemetry import PlainFamily


@runtime_checkable
class Siblings(Protocol):
    """The other workers of the same port, reached through their supervisor."""

    async def reload(self) -> None:
        """Reload all workers, this one too; raises a `ConfigError` as `Gateway.reload`."""
        ...

    async def metrics(self) -> list[PlainFamily]:
        """The metrics of all workers, this one too."""
        ...

    def share(self, values: Mapping[str, Any]) -> None:
        """Let all workers learn these values."""
        ...
