"""A guaranteed setting: the cheapest lam that keeps a required share of accuracy.

Learn-then-test (Angelopoulos et al. 2021, arXiv:2110.01052): the hypothesis at each lam is that
routing there falls short of the required share. The hypotheses are tested in an order fixed
beforehand, from lam = 1 down, until one can't be rejected. The p-values are valid for any number of
queries and any reason for missing labels, which count at their worst.
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
