"""A routing plugin for LiteLLM's Router and proxy, which reports what came of its decisions.

LiteLLM (its Router from 1.92, its proxy from 1.94) runs the objects in `plugins` before each
attempt at a request: `run(context)` may narrow `context.candidate_models`, the models of the
group's deployments, and write `context.signals`, which later come with the events that LiteLLM logs
(https://docs.litellm.ai/docs, "routing plugins" and "custom callbacks").
"""

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any, final

from prefill_router.client import read_usage
from prefill_router.gateway.litellm.gateway_client import (
    GatewayClient,
    GatewayDecision,
    NoDecisionError,
    check_options,
    read_request,
)
from prefill_router.gateway.types import HEADER

_log = logging.getLogger("prefill_router.litellm")
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
        self._known: frozenset[str] = frozenset()  # the router's targets, once it has decided
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
        allow = {name for model in models if (name := self._name(model, self._known))}
        if request is None or len(models) < 2 or (self._known and len(allow) < 2):
            return context
        tried = _tried(context.metadata)
        allow = (allow - tried.keys()) or allow
        try:
            decision = await self._gateway.decide(request, allow=allow)
        except NoDecisionError as error:
            self._known = frozenset()  # the pool may have changed
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

    def _name(self, model: str, known: frozenset[str]) -> str | None:
        """The target that a model is a deployment of; None for none."""
        names = (self._targets.get(model), model, model.partition("/")[2])
        return next((name for name in names if name in known), None)

    def _narrow(self, context: Any, decision: GatewayDecision, tried: Mapping[str, str]) -> None:
        self._known = known = frozenset((*decision.targets, *decision.order))
        names = {model: self._name(model, known) for model in context.candidate_models}
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
        found = metadata.get(_SIGNALS) if isinstance(metadata, Mapping) else None
        own = found.get(_OWN) if isinstance(found, Mapping) else None
        if isinstance(own, Mapping):
            return own
    return None


def _decisions(signals: Mapping[str, Any]) -> dict[str, str]:
    """The ids of a request's decisions so far, by the target that was tried."""
    return {**signals["tried"], signals["target"]: signals["id"]}


def _tried(metadata: Mapping[str, Any]) -> dict[str, str]:
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
