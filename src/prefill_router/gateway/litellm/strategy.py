"""A routing strategy for LiteLLM's Router, for people who keep it.

LiteLLM's `set_custom_routing_strategy` puts a strategy's two methods in the place of its own; each
is given a request, and returns one entry of the Router's `model_list`
(https://docs.litellm.ai/docs/routing, "Custom Routing Strategy").
"""

import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, final

from prefill_router.errors import ConfigError
from prefill_router.gateway.litellm.asking import AskedGateway, NoDecisionError, SpentError
from prefill_router.gateway.litellm.request import read_asked
from prefill_router.policy import check_lam

__all__ = ["PrefillRouterStrategy", "SpentError"]
_log = logging.getLogger("prefill_router.litellm")
_picking = ContextVar("_picking", default=False)
"""Whether LiteLLM picks right now; its awaited method may call the other, which is ours."""


@final
class PrefillRouterStrategy:
    """Sends the requests for one model group to the target that a router chooses.

    Requests for other groups, embeddings, and those for one deployment go as before. A target is a
    model group: LiteLLM itself picks among its deployments, and where it has none to give, because
    they cool down, say, the next in the decision's order is asked. Where no target has a
    deployment, or there is no decision, the request goes to the group's own deployments, or to the
    first of the Router; the log says so when that begins and when it ends.

    Args:
        litellm_router: LiteLLM's Router, on which no strategy but one of this kind was set yet.
        gateway: The address of a running gateway, which decides.
        router: Or a router's folder; it decides in this process, without sessions and budgets.
        lam: From 0, cheapest, to 1, most probable; the gateway's own, or 0.5, if not given.
        model_group: Requests for this model are routed. Give it deployments too: LiteLLM's proxy
            knows only models that it has.
        api_key_env: The variable that holds the gateway's key.
        timeout: A decision that takes longer, in seconds, isn't waited for.

    Raises:
        ConfigError: Not one of `gateway` and `router` is given, or something can't be used.
    """

    def __init__(
        self,
        litellm_router: Any,
        *,
        gateway: str | None = None,
        router: Path | str | None = None,
        lam: float | None = None,
        model_group: str = "auto",
        api_key_env: str | None = None,
        timeout: float = 2.0,
    ) -> None:
        if (gateway is None) == (router is None):
            raise ConfigError("give one of gateway, an address, and router, a folder")
        if router is not None and api_key_env is not None:
            raise ConfigError("api_key_env is for a gateway; a router in this process needs no key")
        if not (math.isfinite(timeout) and timeout > 0):
            raise ConfigError(f"timeout is {timeout}; it must be seconds above 0")
        if lam is not None:
            check_lam(lam)
        self._router, self._group = litellm_router, model_group
        # taken now: set_custom_routing_strategy will hide them behind those of this object
        self._pick: Callable[..., Any] | None = _own(litellm_router, "get_available_deployment")
        self._pick_async: Callable[..., Awaitable[Any]] | None = _own(
            litellm_router, "async_get_available_deployment"
        )
        self._decides = self._decider(gateway, router, lam, api_key_env, timeout)
        self._without = False

    @staticmethod
    def _decider(
        gateway: str | None,
        router: Path | str | None,
        lam: float | None,
        api_key_env: str | None,
        timeout: float,
    ) -> Any:
        if gateway is not None:
            return AskedGateway(gateway, lam=lam, api_key_env=api_key_env, seconds=timeout)
        from prefill_router.gateway.litellm.local import LocalRouter

        return LocalRouter(Path(router or ""), lam=0.5 if lam is None else lam, seconds=timeout)

    async def async_get_available_deployment(
        self,
        model: str,
        messages: Sequence[Any] | None = None,
        input: Any = None,  # noqa: A002  LiteLLM's name
        specific_deployment: bool | None = False,
        request_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """An entry of the Router's `model_list`; LiteLLM calls it for each attempt.

        Raises:
            SpentError: The gateway refuses.
            ConfigError: The Router has no deployments.
        """
        given = _Given(messages, input, specific_deployment, request_kwargs)
        order: tuple[str, ...] = ()
        if self._routes(model, given):
            try:
                order = await self._decides.order_async(given.asked)
            except NoDecisionError as error:
                self._told(str(error))
            else:
                self._told(None)
        for name, deployment in self._candidates(model, order):
            if self._pick_async is None or name is None:
                if deployment is not None:
                    return deployment
                continue
            picking = _picking.set(True)
            try:
                return await self._pick_async(model=name, **given.known)
            except _theirs():
                if name == model:
                    raise
            finally:
                _picking.reset(picking)
        raise _none()

    def get_available_deployment(
        self,
        model: str,
        messages: Sequence[Any] | None = None,
        input: Any = None,  # noqa: A002  LiteLLM's name
        specific_deployment: bool | None = False,
        request_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """The same for calls that aren't awaited.

        Raises:
            SpentError: The gateway refuses.
            ConfigError: The Router has no deployments.
        """
        given = _Given(messages, input, specific_deployment, request_kwargs)
        order: tuple[str, ...] = ()
        if self._routes(model, given):
            try:
                order = self._decides.order(given.asked)
            except NoDecisionError as error:
                self._told(str(error))
            else:
                self._told(None)
        for name, deployment in self._candidates(model, order):
            if self._pick is None or name is None:
                if deployment is not None:
                    return deployment
                continue
            picking = _picking.set(True)
            try:
                return self._pick(model=name, **given.known)
            except _theirs():
                if name == model:
                    raise
            finally:
                _picking.reset(picking)
        raise _none()

    async def aclose(self) -> None:
        """Close what it holds open."""
        await self._decides.aclose()

    def close(self) -> None:
        """Close what it holds open, but for what was awaited."""
        self._decides.close()

    def _routes(self, model: str, given: "_Given") -> bool:
        if model != self._group or given.specific or _picking.get():
            return False
        return given.asked is not None

    def _candidates(self, model: str, order: Sequence[str]) -> Iterator[tuple[str | None, Any]]:
        """Deployments to try in turn, each with the group that LiteLLM is to pick from.

        Groups are None for deployments that only their own model's name tells.
        """
        every = [d for d in self._router.model_list if isinstance(d, Mapping)]
        for target in order:
            group = next((d for d in every if d.get("model_name") == target), None)
            if group is not None:
                yield target, group
                continue
            own = next((d for d in every if target in _models(d)), None)
            if own is not None:
                yield None, own
        asked = next((d for d in every if d.get("model_name") == model), None)
        if model != self._group or asked is not None:
            yield model, asked
        elif every:
            yield None, every[0]

    def _told(self, why: str | None) -> None:
        """Say once that there are no decisions, and once that there are again."""
        if why is not None and not self._without:
            _log.warning(
                "%s; until there are decisions again, requests for %s go to its own deployments, "
                "or else to the first",
                why,
                self._group,
            )
        elif why is None and self._without:
            _log.info("there are decisions again")
        self._without = why is not None


@final
class _Given:
    """What LiteLLM says of a request beside its model."""

    def __init__(
        self,
        messages: Sequence[Any] | None,
        input: Any,  # noqa: A002
        specific: bool | None,
        kwargs: Mapping[str, Any] | None,
    ) -> None:
        self.known = {
            "messages": messages,
            "input": input,
            "specific_deployment": specific,
            "request_kwargs": kwargs,
        }
        self.specific = bool(specific)
        # an input that is told apart is to be embedded, and vectors of two models don't mix
        self.asked = read_asked(messages, kwargs) if input is None else None


def _own(litellm_router: Any, name: str) -> Any:
    """The Router's own method, below a strategy of this kind that this one replaces; or None."""
    method = getattr(litellm_router, name, None)
    earlier = getattr(method, "__self__", None)
    if isinstance(earlier, PrefillRouterStrategy):
        return earlier._pick if name == "get_available_deployment" else earlier._pick_async
    return method


def _models(deployment: Mapping[str, Any]) -> tuple[Any, ...]:
    """The names of its model, with and without the provider's."""
    params = deployment.get("litellm_params")
    model = params.get("model") if isinstance(params, Mapping) else None
    return (model, model.partition("/")[2]) if isinstance(model, str) else ()


def _theirs() -> tuple[type[Exception], ...]:
    """What LiteLLM raises where a group has no deployment to give; its errors are OpenAI's."""
    import openai

    return (ValueError, openai.OpenAIError)


def _none() -> ConfigError:
    return ConfigError("LiteLLM's Router has no deployment for the request; give it one")
