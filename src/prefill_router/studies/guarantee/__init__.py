"""A guaranteed operating point: how cheap may routing be, and still answer as well as promised?

Learn-then-test (Angelopoulos et al. 2021, arXiv:2110.01052): every lam is a hypothesis, that
routing at this lam falls short of the promise; the hypotheses are tested in an order fixed
beforehand, from lam = 1 down, until one can't be rejected. The p-values hold for every number of
queries, and whatever made labels missing: these count at their worst.
"""

from prefill_router.studies.guarantee.kept_share import (
    ASSUMPTIONS,
    CONFIDENCE,
    KEEP,
    LAMS,
    Assumption,
    Guarantee,
    LamTest,
    best_single,
    guarantee,
)
from prefill_router.studies.guarantee.losses import LackingLabels, MissingLabels

__all__ = [
    "ASSUMPTIONS",
    "CONFIDENCE",
    "KEEP",
    "LAMS",
    "Assumption",
    "Guarantee",
    "LackingLabels",
    "LamTest",
    "MissingLabels",
    "best_single",
    "guarantee",
]
