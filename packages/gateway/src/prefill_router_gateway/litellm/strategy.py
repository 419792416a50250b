"""A routing strategy for LiteLLM's Router, and a plugin for its Router and proxy.

The strategy has two methods that LiteLLM calls instead of its own, by
`set_custom_routing_strategy`, or by `register_plugin` since 1.109. Each gets a request and returns
one entry of the Router's `model_list` (https://docs.litellm.ai/docs/routing, "Custom Routing
Strategy"). The router's order of targets is the order in which LiteLLM's model groups are tried for
a deployment.

The plugin reports what came of its decisions. LiteLLM (its Router from 1.92, its proxy from 1.94)
runs the objects in `plugins` before each attempt at a request: `run(context)` may narrow
`context.candidate_models`, the models of the group's deployments, and write `context.signals`,
which later come with the events that LiteLLM logs (https://docs.litellm.ai/docs, "routing plugins"
and "custom callbacks").
"""

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from inspect import isawaitable
from pathlib import Path
from typing import Any, final

from prefill_router.agents import read_harnesses
from prefill_router.endpoints import read_usage
from prefill_router.errors import ConfigError
from prefill_router.remote import PathOrUrl, location
from prefill_router_gateway.litellm.gateway_client import (
    GatewayClient,
    GatewayDecision,
    LiteLLMRequest,
    NoDecisionError,
    check_options,
    failed_before,
    read_request,
)
from prefill_router_gateway.litellm.own_picks import find_own_picks
from prefill_router_gateway.records import HEADER

_log = logging.getLogger("prefill_router_gateway.litellm")
_picking: ContextVar[tuple[Callable[..., Any], str] | None] = ContextVar("_picking", default=None)
"""The pick that LiteLLM makes now, and its group; the async pick may call the other, which is ours.
"""
_ASKED_AGAIN = (
    "this LiteLLM asks the strategy for the pick that the strategy asks of LiteLLM; the versions "
    "1.106 to 1.110 don't: install one of these"
)


@final
class PrefillRouterStrategy:
    """Sends the requests for one model group to the target that a router chooses.

    Requests for other groups, embeddings, and requests for one deployment aren't affected. A target
    is a model group: LiteLLM picks among its deployments, and where none is available, for example
    in a cooldown, the next target in the decision's order is tried. The same happens when LiteLLM
    retries a request that the target's deployments failed on. Where no target has a deployment, or
    there is no decision, the request goes to the group's own deployments, or else to the Router's
    first group. The log says when that begins and when it ends.

    Args:
        litellm_router: LiteLLM's Router, without a custom strategy of any other class.
        gateway: The address of a running gateway, which decides.
        router: Instead of a gateway, a router's folder; it decides in this process, without
            sessions and budgets.
        lam: The trade-off, from 0 (cheapest) to 1 (most likely correct); by default the gateway's
            or the router's own.
        agents: For a router in this process, a file with marks of agents as in a gateway's settings
            (`agents.marks`). They are added to those of this package. A gateway has its own.
        model_group: The model whose requests are routed. Give it deployments too: LiteLLM's proxy
            rejects unknown models, and its Router doesn't retry for a model without deployments.
        api_key_env: The environment variable of the gateway's key.
        timeout: The time limit of a decision, in seconds.

    Attributes:
        own_picks: How the Router picks without a strategy.

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
        agents: Path | str | None = None,
        model_group: str = "auto",
        api_key_env: str | None = None,
        timeout: float = 2.0,
    ) -> None:
        if (gateway is None) == (router is None):
            raise ConfigError("give either gateway, an address, or router, a folder")
        if router is not None and api_key_env is not None:
            raise ConfigError("api_key_env is for a gateway; a router in this process needs no key")
        if gateway is not None and agents is not None:
            raise ConfigError(
                "agents is for a router in this process; give a gateway's marks in its settings"
            )
        check_options(lam, timeout)
        self._router, self._group = litellm_router, model_group
        # looked up now, before LiteLLM replaces them by this object's
        self.own_picks = find_own_picks(litellm_router)
        self._without = False
        self._decides: Any
        if gateway is not None:
            self._decides = GatewayClient(
                gateway, lam=lam, api_key_env=api_key_env, seconds=timeout
            )
        else:
            from prefill_router_gateway.litellm.local_router import LocalRouter

            harnesses = None if agents is None else read_harnesses(Path(agents))
            self._decides = LocalRouter(
                location(router or ""), lam=lam, seconds=timeout, harnesses=harnesses
            )

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
        arguments = _call_arguments(messages, input, specific_deployment, request_kwargs)
        return await self._choose(
            model, arguments, self._decides.order_async, self.own_picks.pick_async
        )

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
        arguments = _call_arguments(messages, input, specific_deployment, request_kwargs)
        return _run_at_once(
            self._choose(model, arguments, self._decides.order, self.own_picks.pick)
        )

    async def aclose(self) -> None:
        """Close all connections and threads."""
        await self._decides.aclose()

    def close(self) -> None:
        """Close the connections and threads of synchronous calls."""
        self._decides.close()

    async def _choose(
        self,
        model: str,
        arguments: Mapping[str, Any],
        decide: Callable[[LiteLLMRequest], Any],
        pick: Callable[..., Any],
    ) -> Any:
        """The deployment; it awaits only where `decide` and `pick` are async."""
        order = await self._find_order(model, arguments, decide)
        registry = getattr(self._router, "registry", None)
        names = group_names(
            # since 1.109 the old name is deprecated
            self._router.model_list if registry is None else registry().all(),
            order=order,
            model=model,
            routed=model == self._group,
            failed=failed_before(arguments["request_kwargs"]),
        )
        for name in names:
            if _picking.get() == (pick, name):
                raise ConfigError(_ASKED_AGAIN)
            picking = _picking.set((pick, name))
            try:
                return await _await_result(pick(model=name, **arguments))
            except _unavailable_errors():
                if name == names[-1]:
                    raise
            finally:
                _picking.reset(picking)
        raise ConfigError("LiteLLM's Router has no deployment for the request; give it one")

    async def _find_order(
        self, model: str, arguments: Mapping[str, Any], decide: Callable[[LiteLLMRequest], Any]
    ) -> tuple[str, ...]:
        """The decision's order of targets; empty where the request isn't routed or has none."""
        if model != self._group or arguments["specific_deployment"] or _picking.get() is not None:
            return ()
        request = read_request(
            arguments["messages"], arguments["input"], arguments["request_kwargs"]
        )
        if request is None:
            return ()
        try:
            order: tuple[str, ...] = await _await_result(decide(request))
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


def _call_arguments(
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


async def _await_result(value: Any) -> Any:
    return await value if isawaitable(value) else value


def _run_at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never awaits, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    coroutine.close()
    raise RuntimeError("LiteLLM's synchronous method returned an awaitable")


def _unavailable_errors() -> tuple[type[Exception], ...]:
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
        failed: How often each deployment failed on this request, by id. Targets that failed as
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


_OWN = "prefill_router"
"""The plugin's key in LiteLLM's signals."""
_SIGNALS = "routing_plugin_signals"
"""The key of the signals in a request's metadata."""
_FAILED = 500
_LEAST_STATUS, _MOST_STATUS = 100, 599


@final
class PrefillRouterPlugin:
    """Narrows the models of a LiteLLM group to the target that a gateway chooses.

    It acts on every group that has deployments of several of the gateway's targets. Probabilities
    and costs are in the signals, by model, under `prefill_router`. Where the gateway can't be
    reached, or has no decision, all candidates stay; the log says when that begins and when it
    ends. When LiteLLM retries a request, the targets that were tried are left out.

    A callback of LiteLLM whose events call `ended` reports outcomes to the gateway.

    Args:
        gateway: The address of a running gateway.
        lam: The trade-off, from 0 (cheapest) to 1 (most likely correct); by default the gateway's.
        api_key_env: The environment variable of the gateway's key.
        timeout: The time limit of a decision, and of a report, in seconds.
        targets: The target of each `litellm_params.model` that isn't named like its target, with or
            without the provider.

    Raises:
        ConfigError: An argument is invalid.
    """

    def __init__(
        self,
        *,
        gateway: str,
        lam: float | None = None,
        api_key_env: str | None = None,
        timeout: float = 2.0,
        targets: Mapping[str, str] | None = None,
    ) -> None:
        check_options(lam, timeout)
        self._gateway = GatewayClient(gateway, lam=lam, api_key_env=api_key_env, seconds=timeout)
        self._targets = dict(targets or {})
        # the router's targets, once it has decided
        self._target_names: frozenset[str] = frozenset()
        self._without = False

    async def run(self, context: Any) -> Any:
        """Narrow the candidates of a request; LiteLLM calls it before each attempt.

        Args:
            context: LiteLLM's `RoutingContext`, which is changed and returned.

        Raises:
            SpentError: A budget is spent, or the gateway's key has reached a limit.
        """
        models = dict.fromkeys(context.candidate_models)
        request = read_request(context.structured_messages, None, {"metadata": context.metadata})
        allow = {name for model in models if (name := self._find_target(model, self._target_names))}
        if request is None or len(models) < 2 or (self._target_names and len(allow) < 2):
            return context
        tried = _tried_targets(context.metadata)
        allow = (allow - tried.keys()) or allow
        try:
            decision = await self._gateway.decide(request, allow=allow)
        except NoDecisionError as error:
            self._target_names = frozenset()  # the pool may have changed
            self._report(str(error), "LiteLLM chooses among all candidates")
            return context
        self._report(None)
        self._narrow(context, decision, tried)
        return context

    async def ended(
        self,
        kwargs: Mapping[str, Any],
        response_obj: object,  # noqa: ARG002  LiteLLM's name
        start_time: datetime,
        end_time: datetime,
    ) -> None:
        """Report what came of an attempt: LiteLLM's `async_log_success_event`, or a failure's.

        Attempts that the plugin didn't decide are left out, and those without a deployment.
        """
        outcome = _outcome(kwargs, start_time, end_time)
        if outcome is None:
            return
        try:
            await self._gateway.report(outcome)
        except NoDecisionError as error:
            self._report(str(error), "outcomes aren't reported")
        else:
            self._report(None)

    async def headers(self, data: Mapping[str, Any], **_: object) -> dict[str, str] | None:
        """The decision's id as a response header: `async_post_call_response_headers_hook`."""
        signals = _signals(data)
        return {HEADER + "decision-id": signals["id"]} if signals else None

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        await self._gateway.aclose()

    def _find_target(self, model: str, targets: frozenset[str]) -> str | None:
        """The target that a model is a deployment of; None for none."""
        names = (self._targets.get(model), model, model.partition("/")[2])
        return next((name for name in names if name in targets), None)

    def _narrow(self, context: Any, decision: GatewayDecision, tried: Mapping[str, str]) -> None:
        self._target_names = targets = frozenset((*decision.targets, *decision.order))
        names = {model: self._find_target(model, targets) for model in context.candidate_models}
        order = [name for name in decision.order if name in names.values()]
        order.sort(key=lambda name: name in tried)
        if not order:
            return
        context.candidate_models = [m for m in context.candidate_models if names[m] == order[0]]
        rows = {model: decision.targets.get(name or "", {}) for model, name in names.items()}
        context.signals[_OWN] = {
            "id": decision.id,
            "target": order[0],
            "lam": decision.lam,
            "targets": {model: name for model, name in names.items() if name is not None},
            "probabilities": {model: row.get("correctness") for model, row in rows.items()},
            "costs": {model: row.get("estimated_cost") for model, row in rows.items()},
            "tried": dict(tried),
        }

    def _report(self, why: str | None, so: str = "") -> None:
        """Log once when the gateway fails, and once when it works again."""
        if why is not None and not self._without:
            _log.warning("%s; until it works again, %s", why, so)
        elif why is None and self._without:
            _log.info("the gateway works again")
        self._without = why is not None


def _signals(request: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What the plugin wrote for the latest attempt at a request; None for nothing."""
    for name in ("litellm_metadata", "metadata"):
        metadata = request.get(name)
        signals = metadata.get(_SIGNALS) if isinstance(metadata, Mapping) else None
        own = signals.get(_OWN) if isinstance(signals, Mapping) else None
        if isinstance(own, Mapping):
            return own
    return None


def _decisions(signals: Mapping[str, Any]) -> dict[str, str]:
    """The ids of a request's decisions so far, by the target that was tried."""
    return {**signals["tried"], signals["target"]: signals["id"]}


def _tried_targets(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The targets of earlier attempts at a request, with the ids of their decisions."""
    # LiteLLM's proxy removes this field from what clients send
    retried = metadata.get("previous_models")
    signals = _signals({"metadata": metadata}) if retried else None
    return {} if signals is None else _decisions(signals)


def _outcome(
    kwargs: Mapping[str, Any], start_time: datetime, end_time: datetime
) -> dict[str, Any] | None:
    """The body of a report; None for an attempt that isn't to be reported."""
    logged = kwargs.get("standard_logging_object") or {}
    signals = _signals(kwargs.get("litellm_params") or {})
    if signals is None:
        return None
    # The metadata may already be a retry's, and the error an earlier attempt's; what is logged is
    # always the attempt's own.
    target = signals["targets"].get(logged.get("model"))
    decision = _decisions(signals).get(target)
    if decision is None:
        return None
    first = kwargs.get("completion_start_time") if kwargs.get("stream") else None
    usage = read_usage((logged.get("metadata") or {}).get("usage_object") or {})
    return {
        "id": decision,
        "target": target,
        "status": _status(kwargs) if logged.get("status") == "failure" else None,
        "seconds": _seconds(start_time, end_time),
        "first_token_seconds": None if first is None else _seconds(start_time, first),
        "input_tokens": usage.input_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        # LiteLLM has 0 where it knows no price; the pool's prices count then
        "cost": logged.get("response_cost") or None,
    }


def _status(kwargs: Mapping[str, Any]) -> int:
    status = getattr(kwargs.get("exception"), "status_code", None)
    if isinstance(status, int) and _LEAST_STATUS <= status <= _MOST_STATUS:
        return status
    return _FAILED


def _seconds(begin: datetime, end: datetime) -> float:
    return max(0.0, (end - begin).total_seconds())
