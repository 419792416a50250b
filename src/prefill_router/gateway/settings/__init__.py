"""What can be set of the gateway: one YAML file, and environment variables over it.

A variable is `PREFILL_ROUTER_` and the path of the setting, its parts joined by two underscores:
`PREFILL_ROUTER_ROUTING__LAM=0.7`. Keys of targets are never here: the pool names their variables.
"""

from prefill_router.gateway.settings.parts import (
    Budget,
    Failures,
    Limits,
    Listen,
    Logs,
    Receipts,
    Routing,
    Sessions,
    Streams,
    Traffic,
)
from prefill_router.gateway.settings.whole import Settings, read_settings, stray_variables
from prefill_router.gateway.settings.wrong import nearest

__all__ = [
    "Budget",
    "Failures",
    "Limits",
    "Listen",
    "Logs",
    "Receipts",
    "Routing",
    "Sessions",
    "Settings",
    "Streams",
    "Traffic",
    "nearest",
    "read_settings",
    "stray_variables",
]
