"""A table of the report: which targets there are."""

from prefill_router.evaluation import Evaluation
from prefill_router.reporting.evaluation_tables import report_table
from prefill_router.reporting.report import Table


@report_table("unsure", "Every target by its name")
def unsure(evaluation: Evaluation) -> Table:
    """Which targets there are."""
    return Table(["target"], [[name] for name in evaluation.targets])
