"""Who asks: something that gives a target's reply to a prompt."""

from typing import Protocol, runtime_checkable

from prefill_router.data import Prompt
from prefill_router.upstream import Reply


@runtime_checkable
class Asker(Protocol):
    """Gives replies; `prefill_router.upstream.Upstream` is one."""

    async def ask(self, target: str, prompt: Prompt, /) -> Reply:
        """A target's reply to a prompt.

        Raises:
            UpstreamError: There is none, or only a part of one.
        """
