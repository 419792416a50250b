from .sections import (
    BudgetSettings as BudgetSettings,
    FailureSettings as FailureSettings,
    LatencySettings as LatencySettings,
    LearningSettings as LearningSettings,
    LimitSettings as LimitSettings,
    ListenSettings as ListenSettings,
    LogSettings as LogSettings,
    ReceiptSettings as ReceiptSettings,
    RoutingSettings as RoutingSettings,
    SavingsSettings as SavingsSettings,
    SessionSettings as SessionSettings,
    SettingsSection as SettingsSection,
    SharedSettings as SharedSettings,
    StreamSettings as StreamSettings,
    TrafficSettings as TrafficSettings,
)
from .sources import (
    SECTIONS as SECTIONS,
    GatewaySettings as GatewaySettings,
    nearest as nearest,
    read_settings as read_settings,
    stray_variables as stray_variables,
)
