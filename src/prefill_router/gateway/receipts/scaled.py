"""What a receipt must hold beside its fixed parts, so that another lam can be tried on it."""

from typing import Any

from prefill_router.cost import CostScale
from prefill_router.errors import PrefillRouterError
from prefill_router.gateway.receipts.receipt import Receipt
from prefill_router.policy import Cascade, Policy, from_dict

_SCALE, _POLICY = "scale", "policy"


def scale_details(scale: CostScale, policy: Policy) -> dict[str, Any]:
    """For a receipt's `details`: the scale of costs in Equation 2, and the policy's options."""
    return {_SCALE: [scale.low, scale.high], _POLICY: policy.to_dict()}


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
