"""A table of the report: what the router expects of each target."""

from prefill_router.evaluation.evaluation import Evaluation
from prefill_router.reporting.pages import table


def unsure(evaluation: Evaluation) -> str:
    """Which targets there are."""
    return table(["Every target by its name"], [[name] for name in evaluation.targets])
