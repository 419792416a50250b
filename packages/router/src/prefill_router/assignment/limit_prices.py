"""Prices of targets whose number of prompts is limited, by Lagrangian duality.

Without the limits each prompt is decided by itself. A limit that would be exceeded gets a price in
right answers, which every prompt at that target pays, so that fewer go there. Whatever the prices
are, the relaxed optimum at these prices plus the prices times the limits is a bound on what any
assignment can reach. The best prices minimise this bound. It is piecewise linear in them, so a
smoothed one is minimised, less and less smoothed (Nesterov, "Smooth minimization of non-smooth
functions", 2005): the maximum over targets becomes a log-sum-exp.
"""

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.assignment.moves import Counts, PerCell
from prefill_router.progress import Progress, SilentProgress
from prefill_router.statistics import row_blocks

_SMOOTHING = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)
"""How far the maximum is smoothed, in right answers per prompt."""
_SAMPLE = 200_000
"""The most prompts of which prices are learned."""
PerTarget = Float[NDArray[np.float64], " target"]


def find_prices(
    value: PerCell,
    cost: PerCell,
    limits: Counts,
    *,
    budget: float | None,
    progress: Progress | None = None,
) -> PerTarget:
    """The price of a prompt at each target; 0 where the limit isn't reached.

    Args:
        value: What a prompt is worth at each target.
        cost: The cost of each cell, in a unit in which it is about as large as the values.
        limits: The most prompts of each target.
        budget: The most cost of all prompts together, in the same unit; None for any.
        progress: Shows how far they are.
    """
    from scipy.optimize import minimize  # it takes half a second to load

    rows = _sample(len(value))
    share = 1 / len(value)
    ceiling = np.append(limits * share, 0.0 if budget is None else budget * share)
    scarce = limits < len(value)
    bounds = [(0.0, None if is_scarce else 0.0) for is_scarce in (*scarce, budget is not None)]
    prices = np.zeros(len(ceiling))
    with (progress or SilentProgress()).task("limits", total=len(_SMOOTHING)) as advance:
        for smoothing in _SMOOTHING:
            prices = minimize(
                _smoothed_bound,
                prices,
                args=(value[rows], cost[rows], ceiling, smoothing),
                jac=True,
                method="L-BFGS-B",
                bounds=bounds,
                options={"maxiter": 200},
            ).x
            advance()
    of_targets: PerTarget = prices[:-1]
    return of_targets


def _sample(count: int) -> NDArray[np.int64]:
    """All prompts, or as many as are needed of them, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, _SAMPLE)).astype(np.int64))


def _smoothed_bound(
    prices: NDArray[np.float64],
    value: PerCell,
    cost: PerCell,
    ceiling: NDArray[np.float64],
    smoothing: float,
) -> tuple[float, NDArray[Any]]:
    """The smoothed bound per prompt at some prices, and its slopes.

    Args:
        prices: Of each target, and at the end of cost.
        value: What a prompt is worth at each target.
        cost: The cost of each cell.
        ceiling: The limits and the budget per prompt, in the order of the prices.
        smoothing: In right answers per prompt.
    """
    total, slopes = 0.0, ceiling.copy()
    for block in row_blocks(len(value)):
        worth = (value[block] - prices[:-1] - prices[-1] * cost[block]) / smoothing
        top = worth.max(axis=1, keepdims=True)
        weight = np.exp(worth - top)
        weights = weight.sum(axis=1, keepdims=True)
        total += smoothing * float((top + np.log(weights)).sum())
        weight /= weights
        slopes[:-1] -= weight.sum(axis=0) / len(value)
        slopes[-1] -= float((weight * cost[block]).sum()) / len(value)
    return total / len(value) + float(prices @ ceiling), slopes
