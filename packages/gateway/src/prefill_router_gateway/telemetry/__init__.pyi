from .gauges import (
    GAUGES as GAUGES,
    PREFIX as PREFIX,
    BudgetLeft as BudgetLeft,
    Gauge as Gauge,
    GaugeReadings as GaugeReadings,
)
from .health import (
    EventLoopLag as EventLoopLag,
    Health as Health,
    HealthCheck as HealthCheck,
    HealthFinding as HealthFinding,
    HealthReport as HealthReport,
    check_encoder as check_encoder,
    check_forecasts as check_forecasts,
    check_process as check_process,
    check_receipts as check_receipts,
    check_shared as check_shared,
    check_targets as check_targets,
    check_versions as check_versions,
    check_workers as check_workers,
)
from .log import (
    LogWriter as LogWriter,
    log_request as log_request,
    logging_to as logging_to,
    with_fields as with_fields,
)
from .metrics import (
    Metrics as Metrics,
    PlainFamily as PlainFamily,
    counters_of as counters_of,
    merge_families as merge_families,
    render_metrics as render_metrics,
)
from .traces import Trace as Trace, Traces as Traces
