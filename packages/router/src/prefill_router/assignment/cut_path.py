"""The linear relaxation of a budget, solved exactly by the path over lam.

Over lam each prompt passes through the vertices of its upper envelope of cost and value. Each step
to the next vertex has an efficiency, value per dollar, which falls from step to step. The relaxed
optimum takes the steps of all prompts in order of efficiency until the budget ends within one of
them. All prompts are then at the vertex that Equation 2 chooses at one lam, except the one that
is split. The lam of a step is that of Equation 2, since the path is computed on its scale:

    lam = 1 / (1 + gain / extra)        with gain in value and extra in normalised cost
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from prefill_router.assignment.moves import Choice, PerCell
from prefill_router.policy import LambdaPath, lambda_path

ROUNDING = 1e-12
"""A sum of costs that exceeds the budget by this share of it still keeps to it."""


@final
@dataclass(frozen=True, eq=False)
class PathCut:
    """Where a budget cuts the path.

    Attributes:
        choice: The target of each prompt; the prompt that the optimum splits keeps the cheaper one.
        lam: The lam of the step in which the budget ends; 1 where it pays for every step.
        bound: The value of the relaxed optimum, which no assignment exceeds.
    """

    choice: Choice
    lam: float
    bound: float


def cut_path(value: PerCell, cost: PerCell, budget: float, *, unit: float) -> PathCut | None:
    """The relaxed optimum for a budget; None where the cheapest targets already exceed it.

    Args:
        value: What a prompt is worth at each target.
        cost: US dollars.
        budget: US dollars for all prompts together.
        unit: The dollars that are 1 on the scale of Equation 2.
    """
    path = lambda_path(value, cost / unit)
    rows, start = np.arange(len(path)), path.start[:-1]
    first = path.target[start]
    left = budget * (1 + ROUNDING) - cost[rows, first].sum()
    if left < 0:
        return None
    worth = value[rows, first].sum()
    lam, query, extra, gain = _steps(path, value, cost)
    dollars = np.maximum.accumulate(np.cumsum(extra))
    count = int(np.searchsorted(dollars, left, side="right"))
    steps = np.bincount(query[:count], minlength=len(path))
    worth += gain[:count].sum()
    if count == len(dollars):
        return PathCut(path.target[start + steps], 1.0, float(worth))
    share = (left - (dollars[count - 1] if count else 0.0)) / extra[count]
    return PathCut(
        path.target[start + steps], float(lam[count]), float(worth + share * gain[count])
    )


def _steps(
    path: LambdaPath, value: PerCell, cost: PerCell
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """The steps of all prompts, the most efficient first: lam, prompt, extra cost and gain."""
    is_step = np.ones(len(path.lam), dtype=np.bool_)
    is_step[path.start[:-1]] = False
    after = np.flatnonzero(is_step)
    after = after[np.argsort(path.lam[after], kind="stable")]
    query, new, old = path.query[after], path.target[after], path.target[after - 1]
    extra = np.maximum(cost[query, new] - cost[query, old], 0)
    return path.lam[after], query, extra, value[query, new] - value[query, old]
