"""Which share of the traffic is routed: whole conversations, and always the same ones."""

from prefill_router.gateway.deciding.ids import share_of
from prefill_router.gateway.settings import Traffic


def is_routed(traffic: Traffic, *, session: str | None, decision: str) -> bool:
    """Whether the router decides on a request.

    As the share grows, what was routed stays routed.

    Args:
        traffic: The share.
        session: What names the conversation; without one the request stands for itself.
        decision: The name of the decision.
    """
    return traffic.share >= 1 or share_of(session or decision) < traffic.share
