"""The guard: keys of clients, their limits, and what no request may do.

http_protocol   connections that hold little and end soon (uvicorn)
admission       what every request passes before the gateway looks at it, and what replies pass
checks          the checks on the way: headers, host names, room, and how much each key may ask
client_keys     which keys there are, what each may do, and the file of them
error_replies   refusals and failures as replies
"""

from prefill_router.gateway.guard.admission import FREE_BODY, KEY, Guard, address_of
from prefill_router.gateway.guard.checks import BodyBudget, HostNames, KeyLimits, RequestSlots
from prefill_router.gateway.guard.client_keys import (
    ClientKey,
    ClientKeys,
    check_listen,
    key_budgets,
    read_keys,
)
from prefill_router.gateway.guard.error_replies import error_handlers, send_refusal

__all__ = [
    "FREE_BODY",
    "KEY",
    "BodyBudget",
    "ClientKey",
    "ClientKeys",
    "Guard",
    "HostNames",
    "KeyLimits",
    "RequestSlots",
    "address_of",
    "check_listen",
    "error_handlers",
    "key_budgets",
    "read_keys",
    "send_refusal",
]
