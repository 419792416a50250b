"""Reports for people and programs: pages, figures and tables, on disk whole or not at all."""

from prefill_router.reporting.evaluation_report import check_replaceable, is_report, write_report

__all__ = ["check_replaceable", "is_report", "write_report"]
