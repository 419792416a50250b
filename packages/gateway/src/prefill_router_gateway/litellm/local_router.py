"""Gets the order of targets for a LiteLLM request from a router in this process."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import final

from prefill_router.agents import Harnesses, load_harnesses
from prefill_router.errors import PrefillRouterError
from prefill_router.remote import PathOrUrl
from prefill_router.router import Router
from prefill_router_gateway.litellm.gateway_client import LiteLLMRequest, NoDecisionError
from prefill_router_gateway.protocol import read_envelope, scored_prompt


@final
class LocalRouter:
    """Routes with a router in this process, in a thread of its own, since encoding takes CPU time.

    Args:
        folder: The router's folder.
        lam: The trade-off; None for the router's own.
        seconds: The time limit of a decision.
        harnesses: The marks of agents; those of this package if not given.

    Raises:
        ConfigError: There is no router in the folder.
        CorruptError: The folder's files were changed or damaged.
    """

    def __init__(
        self,
        folder: PathOrUrl,
        *,
        lam: float | None,
        seconds: float,
        harnesses: Harnesses | None = None,
    ) -> None:
        self._harnesses = harnesses or load_harnesses()
        self._router, self._lam, self._seconds = Router.load(folder), lam, seconds
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefill-router")

    def order(self, request: LiteLLMRequest) -> tuple[str, ...]:
        """The names of the targets, the chosen one first; sessions are ignored.

        Raises:
            NoDecisionError: The request can't be read, or it took too long.
        """
        future = self._thread.submit(self._decide, request)
        try:
            return future.result(self._seconds)
        except TimeoutError:
            future.cancel()
            raise NoDecisionError("the router took too long") from None

    async def order_async(self, request: LiteLLMRequest) -> tuple[str, ...]:
        """`order` for an event loop.

        Raises:
            NoDecisionError: As for `order`.
        """
        future = asyncio.wrap_future(self._thread.submit(self._decide, request))
        try:
            async with asyncio.timeout(self._seconds):
                return await future
        except TimeoutError:
            raise NoDecisionError("the router took too long") from None

    def _decide(self, request: LiteLLMRequest) -> tuple[str, ...]:
        try:
            envelope = read_envelope(request.endpoint, request.body)
            prompt = scored_prompt(envelope, "ask", envelope.read((), self._harnesses))
            order = () if prompt is None else self._router.route(prompt, lam=self._lam).order
        except PrefillRouterError as error:
            raise NoDecisionError(f"the router can't read it ({type(error).__name__})") from None
        if not order:
            raise NoDecisionError("the request has no text")
        return order

    async def aclose(self) -> None:
        """End the thread."""
        self.close()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
