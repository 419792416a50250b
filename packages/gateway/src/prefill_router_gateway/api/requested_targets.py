"""Which targets a request may go to: its model's name, its headers, its fields and its key.

A model with efforts may be named without one: it stands for all its efforts. A request for it goes
to the effort that its fields ask for, or the router chooses among them.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import final

from prefill_router.endpoints import read_effort
from prefill_router.targets import Pool, name_with_effort
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.guard import ClientKey
from prefill_router_gateway.protocol import (
    ROUTING_NAMES,
    Envelope,
    RequestedModel,
    RoutingPreferences,
    parse_model,
    read_preferences,
)
from prefill_router_gateway.records import Header
from prefill_router_gateway.settings import GatewaySettings


@final
@dataclass(frozen=True, kw_only=True)
class RequestedTargets:
    """What a request says about its target.

    Attributes:
        names: The targets that its key may use.
        allowed: The same, or None where the key may use all.
        model: What the model's name says.
        preferences: What its headers and OpenRouter's fields say.
        openrouter_lam: The lam of OpenRouter's fields; None where there is none.
    """

    names: tuple[str, ...]
    allowed: frozenset[str] | None
    model: RequestedModel
    preferences: RoutingPreferences
    openrouter_lam: float | None


def read_requested_targets(
    envelope: Envelope,
    headers: Sequence[Header],
    *,
    key: ClientKey | None,
    pool: Pool,
    settings: GatewaySettings,
) -> RequestedTargets:
    """Read which targets a request may go to.

    Args:
        envelope: The request's body.
        headers: Its headers, with names in lower case.
        key: The client's key.
        pool: All targets.
        settings: The current settings.

    Raises:
        RefusalError: It names a model or target that doesn't exist, or a header is malformed.
    """
    allowed = allowed_targets(key, pool)
    names = tuple(n for n in pool.names if allowed is None or n in allowed)
    models = {n: own for n, each in pool.models.items() if (own := set(each).intersection(names))}
    preferences = _with_efforts(read_preferences(headers, (*names, *models)), pool)
    model, openrouter_lam = envelope.model, None
    if (options := envelope.options) is not None:
        preferences = options.narrow(preferences, pool, names)
        model, openrouter_lam = options.find_target(model, pool, names), options.lam
    if model in models:
        model, preferences = _choose_effort(envelope, model, models[model], preferences)
    requested = parse_model(
        model, targets=names, names=settings.routing.names, models=tuple(models)
    )
    return RequestedTargets(
        names=names,
        allowed=allowed,
        model=requested,
        preferences=preferences,
        openrouter_lam=openrouter_lam,
    )


def allowed_targets(key: ClientKey | None, pool: Pool) -> frozenset[str] | None:
    """The targets that a key may use; None for all."""
    return None if key is None or key.targets is None else frozenset(pool.with_efforts(key.targets))


def _with_efforts(preferences: RoutingPreferences, pool: Pool) -> RoutingPreferences:
    """The preferences, where a model with efforts stands for all of its targets."""
    if not pool.models:
        return preferences
    allow = preferences.allow
    return replace(
        preferences,
        allow=None if allow is None else frozenset(pool.with_efforts(allow)),
        exclude=frozenset(pool.with_efforts(preferences.exclude)),
    )


def _choose_effort(
    envelope: Envelope, model: str, targets: Set[str], preferences: RoutingPreferences
) -> tuple[str, RoutingPreferences]:
    """The target with the effort that a request asks for, or a name that routes among all.

    Returns:
        The name, and the preferences, narrowed to this model where it is to be routed.
    """
    effort = read_effort(envelope.endpoint, envelope.value)
    if effort is not None and (name := name_with_effort(model, effort)) in targets:
        return name, preferences
    allow = frozenset(targets) if preferences.allow is None else preferences.allow & targets
    if not allow:
        raise RefusalError(
            f"the model {model!r} and the allowed targets have no target in common; name one of "
            f"{', '.join(sorted(targets))}, or allow them",
            param="model",
        )
    return ROUTING_NAMES[0], replace(preferences, allow=allow)
