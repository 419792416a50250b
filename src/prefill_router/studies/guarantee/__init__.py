"""A guaranteed operating point: how cheap may routing be, and still answer as well as promised?

Learn-then-test (Angelopoulos et al. 2021, arXiv:2110.01052): every lam is a hypothesis, that
routing at this lam falls short of the promise; the hypotheses are tested in an order fixed
beforehand, from lam = 1 down, until one can't be rejected. The p-values hold for every number of
queries, and whatever made labels missing: these count at their worst.
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
