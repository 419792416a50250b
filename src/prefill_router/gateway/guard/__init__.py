"""The guard: keys of clients, their limits, and what no request may do.

http_protocol   connections that hold little and end soon (uvicorn)
admission       what every request passes before the gateway looks at it
request_head    what is checked before a body is read: headers, and the gateway's own host names
client_keys     which keys there are, what each may do, and the file of them
limits          how much each key may ask, and how much the gateway takes on at once
error_replies   refusals and failures as replies
"""

from prefill_router.lazy_imports import optional_imports

with optional_imports("the gateway"):
    from prefill_router.gateway.guard.admission import FREE_BODY, KEY, Guard, address_of
    from prefill_router.gateway.guard.client_keys import ClientKey, ClientKeys, read_keys
    from prefill_router.gateway.guard.error_replies import error_handlers, send_refusal
    from prefill_router.gateway.guard.limits import BodyBudget, KeyLimits, RequestSlots, key_budgets
    from prefill_router.gateway.guard.request_head import HostNames, check_listen

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
