"""What a receipt must hold beside its fixed parts, so that another lam can be tried on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from prefill_router.cost import CostScale
from prefill_router.errors import PrefillRouterError
from prefill_router.gateway.receipts.receipt import Receipt
from prefill_router.policy import Cascade, Policy, from_dict

_SCALE, _POLICY, _SESSIONS, _CACHE = "scale", "policy", "sessions", "cache"


def scale_details(scale: CostScale, policy: Policy) -> dict[str, Any]:
    """For a receipt's `details`: the scale of costs in Equation 2, and the policy's options."""
    return {_SCALE: [scale.low, scale.high], _POLICY: policy.to_dict()}


@final
@dataclass(frozen=True, kw_only=True)
class Keeping:
    """By what a conversation kept its target.

    Attributes:
        seconds: Silent for longer, it was forgotten.
        cache_seconds: So long its prompt was taken to be cached.
        margin: What a switch had to gain in score.
        ratio: Every target's own tokens for each of the encoder's.
        saved: What a cached token saves at each target, US dollars.
    """

    seconds: float
    cache_seconds: float
    margin: float
    ratio: Mapping[str, float]
    saved: Mapping[str, float]


def keeping_details(keeping: Keeping) -> dict[str, Any]:
    """For the `details` of a receipt with a session: by what conversations keep their target."""
    return {
        _SESSIONS: [keeping.seconds, keeping.cache_seconds, keeping.margin],
        _CACHE: {name: [ratio, keeping.saved[name]] for name, ratio in keeping.ratio.items()},
    }


def keeping_of(receipt: Receipt) -> Keeping | None:
    """By what its conversation kept its target; None where the receipt doesn't hold that."""
    try:
        seconds, cache_seconds, margin = map(float, receipt.details[_SESSIONS])
        cache = {name: (float(a), float(b)) for name, (a, b) in receipt.details[_CACHE].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return Keeping(
        seconds=seconds,
        cache_seconds=cache_seconds,
        margin=margin,
        ratio={name: ratio for name, (ratio, _) in cache.items()},
        saved={name: saved for name, (_, saved) in cache.items()},
    )


def scale_of(receipt: Receipt) -> CostScale | None:
    """The scale of costs that was decided by; None where the receipt doesn't hold it."""
    scale = receipt.details.get(_SCALE)
    if not isinstance(scale, list | tuple) or len(scale) != 2:
        return None
    low, high = scale
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return None
    return CostScale(float(low), float(high))


def policy_of(receipt: Receipt) -> Policy | None:
    """The policy that decided; None where there was none, or it can't choose beforehand."""
    told = receipt.details.get(_POLICY, {"kind": receipt.policy})
    try:
        policy = from_dict(told) if isinstance(told, dict) else None
    except PrefillRouterError:
        return None
    return None if isinstance(policy, Cascade) else policy
