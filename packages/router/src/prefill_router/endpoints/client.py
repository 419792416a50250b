"""The client of a pool's endpoints: each target is called with its provider's key and dialect."""

import asyncio
import json
import os
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, final

from prefill_router.data import Prompt, prompt_text
from prefill_router.endpoints.failures import Callee
from prefill_router.endpoints.keys import provider_keys
from prefill_router.endpoints.redaction import Redaction
from prefill_router.endpoints.reply import Reply
from prefill_router.endpoints.reply_reader import ReplyReader
from prefill_router.endpoints.request_body import request_messages, request_parameters
from prefill_router.endpoints.retries import Retries, RetryPolicy
from prefill_router.errors import ConfigError, UpstreamError
from prefill_router.targets import Pool, Provider, Target

if TYPE_CHECKING:
    from prefill_router.endpoints.call import ProviderClient

_WAIT_SECONDS, _LONGEST_WAIT = 1.0, 30.0


@final
class Upstream:
    """A client of a pool's endpoints; open it with `async with`.

    Of a target with several endpoints it calls the first.

    At most `concurrency` calls to a provider are in flight at once; further ones wait.

    Args:
        pool: The targets.
        environment: The variables that hold the keys; by default the process's environment.

    Raises:
        ConfigError: A key isn't set or isn't valid, a target has no endpoint, or it sets an option
            that its dialect has no field for.
    """

    def __init__(self, pool: Pool, *, environment: Mapping[str, str] | None = None) -> None:
        pool = self._pool = pool.at_first()
        self._providers = {name: pool.provider_of(name) for name in pool.names}
        self._parameters = {
            name: request_parameters(pool[name], provider.dialect)
            for name, provider in self._providers.items()
        }
        variables = os.environ if environment is None else environment
        self._keys = provider_keys(self._providers.values(), variables)
        self._secrets = [*self._keys.values(), *(s for p in self._keys for s in p.secrets)]
        self._callers: dict[Provider, ProviderClient] = {}
        self._gates: dict[Provider, asyncio.Semaphore] = {}

    async def __aenter__(self) -> "Upstream":
        from prefill_router.endpoints.call import ProviderClient

        redaction = Redaction.of_keys(self._secrets)
        for provider, key in self._keys.items():
            self._callers[provider] = ProviderClient(provider, key, redaction)
            self._gates[provider] = asyncio.Semaphore(provider.concurrency)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        callers, self._callers = self._callers, {}
        for caller in callers.values():
            await caller.close()

    def parameters(self, target: str) -> dict[str, Any]:
        """The fields of a target's requests other than the messages, as they are sent.

        Raises:
            ConfigError: The pool has no such target.
        """
        self._pool.indices([target])
        return dict(self._parameters[target])

    async def ask(self, target: str, prompt: Prompt) -> Reply:
        """Call a target once.

        Raises:
            UpstreamError: It returned no answer, or only part of one.
            ConfigError: The pool has no such target, or the client isn't open.
        """
        self._pool.indices([target])
        return await self.ask_as(self._pool[target], prompt)

    async def ask_as(self, target: Target, prompt: Prompt) -> Reply:
        """Call a target of the pool once, with the options that are given here.

        Raises:
            UpstreamError, ConfigError: As for `ask`.
        """
        self._pool.indices([target.name])
        provider = self._providers[target.name]
        caller = self._callers.get(provider)
        if caller is None:
            raise ConfigError("the client isn't open; ask within: async with Upstream(pool) as ...")
        from prefill_router.endpoints.call import EndpointRequest

        body = self._body(target, prompt)
        question = EndpointRequest(target.name, body, prompt_text(prompt))
        async with self._gates[provider]:
            return await caller.call(question, ReplyReader(provider.dialect))

    def _body(self, target: Target, prompt: Prompt) -> bytes:
        dialect = self._providers[target.name].dialect
        is_own = target is self._pool[target.name]
        parameters = (
            self._parameters[target.name] if is_own else request_parameters(target, dialect)
        )
        body = {"messages": request_messages(target, dialect, prompt), **parameters}
        try:
            return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError:  # a lone surrogate: no Unicode text has one
            raise Callee.of_target(target.name).error("refused", billed="no") from None


def ask_once(pool: Pool, target: str, prompt: Prompt, *, attempts: int = 3) -> Reply:
    """Call one target and wait for its answer; not for use where an event loop is running.

    Args:
        pool: The pool that has the target.
        target: Its name.
        prompt: The prompt.
        attempts: The most calls to make. It waits between them as long as the endpoint says, or
            with exponential backoff from one second, and gives up rather than wait over 30 s.

    Raises:
        UpstreamError: It returned no answer, or only part of one.
        ConfigError: The pool has no such target, or its settings don't allow a call.
    """

    async def ask() -> Reply:
        retries = Retries(RetryPolicy(attempts, _WAIT_SECONDS, patience=1), longest=_LONGEST_WAIT)
        async with Upstream(pool.select([target])) as upstream:
            while True:
                try:
                    return await upstream.ask(target, prompt)
                except UpstreamError as error:
                    await asyncio.sleep(retries.wait(error))

    return asyncio.run(ask())
