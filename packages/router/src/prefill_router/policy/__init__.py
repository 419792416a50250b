"""Policies: how predicted correctness and cost become a choice of target, and their exact paths.

    lambda      the best score of Equation 2 (the paper's)
    argmax      the most probable target
    tolerance   the cheapest target that is nearly as probable as the best
    threshold   the strong one of two targets where it is likely enough to win, else the weak one
    tiered      the best target of the cheapest tier that is good enough
    cascade     one target after the other, until an answer passes a quality check

`FrugalCascade` learns a cascade's order, thresholds and scorer.

Each has one parameter in [0, 1], from the cheapest or weakest end to the most accurate one.
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
