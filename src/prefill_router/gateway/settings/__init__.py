"""What can be set of the gateway: one YAML file, and environment variables over it.

A variable is `PREFILL_ROUTER_` and the path of the setting, its parts joined by two underscores:
`PREFILL_ROUTER_ROUTING__LAM=0.7`. Keys of targets are never here: the pool names their variables.
"""

from prefill_router.gateway.settings.sections import (
    BudgetSettings,
    FailureSettings,
    LimitSettings,
    ListenSettings,
    LogSettings,
    ReceiptSettings,
    RoutingSettings,
    SessionSettings,
    SettingsSection,
    StreamSettings,
    TrafficSettings,
)
from prefill_router.gateway.settings.sources import (
    SECTIONS,
    GatewaySettings,
    nearest,
    read_settings,
    stray_variables,
)

__all__ = [
    "SECTIONS",
    "BudgetSettings",
    "FailureSettings",
    "GatewaySettings",
    "LimitSettings",
    "ListenSettings",
    "LogSettings",
    "ReceiptSettings",
    "RoutingSettings",
    "SessionSettings",
    "SettingsSection",
    "StreamSettings",
    "TrafficSettings",
    "nearest",
    "read_settings",
    "stray_variables",
]
