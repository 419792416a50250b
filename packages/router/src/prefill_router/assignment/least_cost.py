"""The cheapest assignment within limits, exactly: a transportation problem.

As a linear program it has a solution in which no prompt is split between targets, and the simplex
method finds such a one.
"""

from typing import Final

import numpy as np

from prefill_router.assignment.moves import Choice, Counts, PerCell

MOST_CELLS: Final = 10_000
"""Prompts times targets for which this takes about half a second or less."""


def cheapest_choice(cost: PerCell, limits: Counts) -> Choice:
    """The target of each prompt in the cheapest assignment.

    Args:
        cost: The cost of each cell, in a unit in which differences are about 1.
        limits: The most prompts of each target; together they have room for all prompts.
    """
    from scipy.optimize import linprog  # it takes half a second to load
    from scipy.sparse import eye_array, kron

    prompts, targets = cost.shape
    solution = linprog(
        cost.ravel(),
        A_ub=kron(np.ones((1, prompts)), eye_array(targets), format="csr"),
        b_ub=limits,
        A_eq=kron(eye_array(prompts), np.ones((1, targets)), format="csr"),
        b_eq=np.ones(prompts),
        method="highs-ds",
        options={"dual_feasibility_tolerance": 1e-10},
    )
    choice: Choice = solution.x.reshape(prompts, targets).argmax(axis=1)
    return choice
