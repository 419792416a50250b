"""A routing strategy for LiteLLM's Router.

LiteLLM's `set_custom_routing_strategy`, or `register_plugin` since 1.109, replaces two methods of
the Router by a strategy's; each gets a request and returns one entry of the Router's `model_list`
(https://docs.litellm.ai/docs/routing, "Custom Routing Strategy"). The router's order of targets is
the order in which LiteLLM's model groups are tried for a deployment.
"""

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from inspect import isawaitable
from typing import Any, final

from prefill_router.errors import ConfigError
from prefill_router.gateway.litellm.gateway_client import (
    GatewayClient,
    LiteLLMRequest,
    NoDecisionError,
    SpentError,
    check_options,
    failed_before,
    read_request,
)
from prefill_router.remote import PathOrUrl, location

__all__ = ["PrefillRouterStrategy", "SpentError"]
_log = logging.getLogger("prefill_router.litellm")
_picking = ContextVar("_picking", default=False)
"""Whether LiteLLM is picking now; its async method may call the other one, which is ours."""
_PICK = ("get_available_deployment",)
_PICK_ASYNC = ("_core_async_get_available_deployment", "async_get_available_deployment")
"""LiteLLM's own methods; since 1.109 the async one's old name is deprecated."""


@final
class PrefillRouterStrategy:
    """Sends the requests for one model group to the target that a router chooses.

    Requests for other groups, embeddings, and requests for one deployment aren't affected. A target
    is a model group: LiteLLM picks among its deployments, and where none is available, for example
    in a cooldown, the next target in the decision's order is tried. The same happens when LiteLLM
    retries a request that the target's deployments failed on. Where no target has a deployment, or
    there is no decision, the request goes to the group's own deployments, or else to the Router's
    first group; the log says when that begins and when it ends.

    Args:
        litellm_router: LiteLLM's Router, without a custom strategy of any other class.
        gateway: The address of a running gateway, which decides.
        router: Instead of a gateway, a router's folder; it decides in this process, without
            sessions and budgets.
        lam: The trade-off, from 0 (cheapest) to 1 (most likely correct); by default the gateway's
            setting, or 0.5 for a router.
        model_group: The model whose requests are routed. Give it deployments too: LiteLLM's proxy
            rejects unknown models, and its Router doesn't retry for a model without deployments.
        api_key_env: The environment variable of the gateway's key.
        timeout: The time limit of a decision, in seconds.

    Raises:
        ConfigError: Not exactly one of `gateway` and `router` is given, or an argument is invalid.
    """

    def __init__(
        self,
        litellm_router: Any,
        *,
        gateway: str | None = None,
        router: PathOrUrl | str | None = None,
        lam: float | None = None,
        model_group: str = "auto",
        api_key_env: str | None = None,
        timeout: float = 2.0,
    ) -> None:
        if (gateway is None) == (router is None):
            raise ConfigError("give either gateway, an address, or router, a folder")
        if router is not None and api_key_env is not None:
            raise ConfigError("api_key_env is for a gateway; a router in this process needs no key")
        check_options(lam, timeout)
        self._router, self._group = litellm_router, model_group
        # looked up now, before LiteLLM replaces them by this object's
        self._pick = _own(litellm_router, _PICK)
        self._pick_async = _own(litellm_router, _PICK_ASYNC)
        self._without = False
        self._decides: Any
        if gateway is not None:
            self._decides = GatewayClient(
                gateway, lam=lam, api_key_env=api_key_env, seconds=timeout
            )
        else:
            from prefill_router.gateway.litellm.local_router import LocalRouter

            own = 0.5 if lam is None else lam
            self._decides = LocalRouter(location(router or ""), lam=own, seconds=timeout)

    async def async_get_available_deployment(
        self,
        model: str,
        messages: Sequence[Any] | None = None,
        input: Any = None,  # noqa: A002  LiteLLM's name
        specific_deployment: bool | None = False,
        request_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Choose an entry of the Router's `model_list`; LiteLLM calls it for each attempt.

        Raises:
            SpentError: The gateway refuses.
            ConfigError: The Router has no deployments.
        """
        given = _given(messages, input, specific_deployment, request_kwargs)
        return await self._chosen(model, given, self._decides.order_async, self._pick_async)

    def get_available_deployment(
        self,
        model: str,
        messages: Sequence[Any] | None = None,
        input: Any = None,  # noqa: A002  LiteLLM's name
        specific_deployment: bool | None = False,
        request_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """The same for LiteLLM's synchronous calls.

        Raises:
            SpentError: The gateway refuses.
            ConfigError: The Router has no deployments.
        """
        given = _given(messages, input, specific_deployment, request_kwargs)
        return _at_once(self._chosen(model, given, self._decides.order, self._pick))

    async def aclose(self) -> None:
        """Close all connections and threads."""
        await self._decides.aclose()

    def close(self) -> None:
        """Close the connections and threads of synchronous calls."""
        self._decides.close()

    async def _chosen(
        self,
        model: str,
        given: Mapping[str, Any],
        decide: Callable[[LiteLLMRequest], Any],
        pick: Callable[..., Any],
    ) -> Any:
        """The deployment; it awaits only where `decide` and `pick` are async."""
        order = await self._order(model, given, decide)
        registry = getattr(self._router, "registry", None)
        names = group_names(
            # since 1.109 the old name is deprecated
            self._router.model_list if registry is None else registry().all(),
            order=order,
            model=model,
            routed=model == self._group,
            failed=failed_before(given["request_kwargs"]),
        )
        for name in names:
            picking = _picking.set(True)
            try:
                return await _result(pick(model=name, **given))
            except _theirs():
                if name == names[-1]:
                    raise
            finally:
                _picking.reset(picking)
        raise ConfigError("LiteLLM's Router has no deployment for the request; give it one")

    async def _order(
        self, model: str, given: Mapping[str, Any], decide: Callable[[LiteLLMRequest], Any]
    ) -> tuple[str, ...]:
        """The decision's order of targets; empty where the request isn't routed or has none."""
        if model != self._group or given["specific_deployment"] or _picking.get():
            return ()
        asked = read_request(given["messages"], given["input"], given["request_kwargs"])
        if asked is None:
            return ()
        try:
            order: tuple[str, ...] = await _result(decide(asked))
        except NoDecisionError as error:
            self._report(str(error))
            return ()
        self._report(None)
        return order

    def _report(self, why: str | None) -> None:
        """Log once when decisions fail, and once when they work again."""
        if why is not None and not self._without:
            _log.warning(
                "%s; until there are decisions again, requests for %s go to its own deployments, "
                "or else to the Router's first group",
                why,
                self._group,
            )
        elif why is None and self._without:
            _log.info("there are decisions again")
        self._without = why is not None


def _given(
    messages: Sequence[Any] | None,
    input: Any,  # noqa: A002
    specific: bool | None,
    kwargs: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """LiteLLM's arguments for a request other than the model, by LiteLLM's names."""
    return {
        "messages": messages,
        "input": input,
        "specific_deployment": specific,
        "request_kwargs": kwargs,
    }


async def _result(value: Any) -> Any:
    return await value if isawaitable(value) else value


def _at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never awaits, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    coroutine.close()
    raise RuntimeError("LiteLLM's synchronous method returned an awaitable")


def _own(litellm_router: Any, names: Sequence[str]) -> Callable[..., Any]:
    """The Router's own method, even where an earlier strategy of this class has replaced it.

    Raises:
        ConfigError: There is no such method.
    """
    method = next((m for m in (getattr(litellm_router, n, None) for n in names) if m), None)
    for layer in (method, getattr(method, "__wrapped__", None)):  # newer Routers wrap strategies
        earlier = getattr(layer, "__self__", None)
        if isinstance(earlier, PrefillRouterStrategy):
            return earlier._pick if names is _PICK else earlier._pick_async
    if not callable(method):
        raise ConfigError("this isn't a litellm.Router; give the Router whose requests to route")
    own: Callable[..., Any] = method
    return own


def _theirs() -> tuple[type[Exception], ...]:
    """LiteLLM's errors where a group has no available deployment; they derive from OpenAI's."""
    import openai

    return (ValueError, openai.OpenAIError)


def group_names(
    model_list: Sequence[Any],
    *,
    order: Sequence[str],
    model: str,
    routed: bool,
    failed: Mapping[str, int],
) -> tuple[str, ...]:
    """The names by which LiteLLM is to pick a deployment, in order; empty if it has none.

    A target without a group of its name is looked up among the deployments' models, with and
    without the provider's name, which LiteLLM accepts as names too.

    Args:
        model_list: The Router's deployments.
        order: The targets, the chosen one first; empty without a decision.
        model: The model that the request names.
        routed: Whether that is the group whose requests are routed; if it has no deployments, the
            Router's first group is the last resort.
        failed: How often each deployment failed on this request, by id; targets that failed as
            often as they have deployments are tried after the others.
    """
    every = [row for row in model_list if isinstance(row, Mapping)]
    groups = [row["model_name"] for row in every if isinstance(row.get("model_name"), str)]
    rounds: dict[str, int] = {}
    names: list[str] = []
    for target in order:
        name = target if target in groups else _model_of(target, every)
        if name is not None and name not in names:
            names.append(name)
            rows = [row for row in every if name in _names(row)]
            rounds[name] = sum(failed.get(_id(row), 0) for row in rows) // len(rows)
    names.sort(key=rounds.__getitem__)
    last = model if not routed or model in groups else next(iter(groups), None)
    if last is not None and last not in names:
        names.append(last)
    return tuple(names)


def _names(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The names of a deployment in LiteLLM."""
    params = row.get("litellm_params")
    return (row.get("model_name"), params.get("model") if isinstance(params, Mapping) else None)


def _model_of(target: str, every: Sequence[Mapping[str, Any]]) -> str | None:
    for row in every:
        model = _names(row)[1]
        if isinstance(model, str) and target in (model, model.partition("/")[2]):
            return model
    return None


def _id(row: Mapping[str, Any]) -> str:
    info = row.get("model_info")
    return str(info.get("id")) if isinstance(info, Mapping) else ""
