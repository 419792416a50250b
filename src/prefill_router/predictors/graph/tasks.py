"""The task of a query: known while fitting, told from its features afterwards."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax

Rows = Float64[NDArray[np.float64], "query feature"]
Centroids = Float64[NDArray[np.float64], "task feature"]
_TEMPERATURES = np.logspace(-2, 3, 41)  # in units of the features' number
_ROWS = 2000  # of one pass; bounds the memory


def number_tasks(
    groups: Sequence[str],
) -> tuple[tuple[str, ...], Int[NDArray[np.int64], " query"]]:
    """The tasks' names, sorted, and each query's task by number."""
    names = tuple(sorted(set(groups)))
    numbers = {name: number for number, name in enumerate(names)}
    return names, np.array([numbers[group] for group in groups], dtype=np.int64)


def find_centroids(rows: Rows, task: Int[NDArray[np.int64], " query"]) -> Centroids:
    """The mean row of every task."""
    total = np.zeros((int(task.max()) + 1, rows.shape[1]))
    np.add.at(total, task, rows)
    mean: Centroids = total / np.bincount(task)[:, None]
    return mean


def share_of_tasks(
    rows: Rows, centroids: Centroids, *, temperature: float
) -> Float64[NDArray[np.float64], "query task"]:
    """How much each query belongs to each task: softmax of -distance^2 / (2 temperature)."""
    share: NDArray[np.float64] = softmax(_closeness(rows, centroids) / temperature, axis=1)
    return share


def choose_temperature(rows: Rows, task: Int[NDArray[np.int64], " query"]) -> float:
    """The temperature under which the rows' own tasks are likeliest.

    Each row is measured against its task's centroid without the row itself, as a new query would
    be; tasks of a single row, which have none, are left out.
    """
    centroids, sizes = find_centroids(rows, task), np.bincount(task)
    scale = float(rows.shape[1])
    known = np.flatnonzero(sizes[task] > 1)
    if len(sizes) == 1 or not len(known):
        return scale
    total = np.zeros(len(_TEMPERATURES))
    for start in range(0, len(known), _ROWS):
        part = known[start : start + _ROWS]
        closeness = _without_itself(rows[part], task[part], centroids, sizes)
        for i, temperature in enumerate(scale * _TEMPERATURES):
            chance = log_softmax(closeness / temperature, axis=1)
            total[i] += chance[np.arange(len(part)), task[part]].sum()
    return float(scale * _TEMPERATURES[int(total.argmax())])


def _closeness(rows: Rows, centroids: Centroids) -> Float64[NDArray[np.float64], "query task"]:
    """-distance^2 / 2, less what is the same for all tasks."""
    close: NDArray[np.float64] = rows @ centroids.T - (centroids**2).sum(axis=1) / 2
    return close


def _without_itself(
    rows: Rows,
    task: Int[NDArray[np.int64], " query"],
    centroids: Centroids,
    sizes: Int[NDArray[np.int64], " task"],
) -> Float64[NDArray[np.float64], "query task"]:
    closeness = _closeness(rows, centroids)
    count = sizes[task][:, None]
    own = (centroids[task] * count - rows) / (count - 1)
    closeness[np.arange(len(rows)), task] = (rows * own).sum(axis=1) - (own**2).sum(axis=1) / 2
    return closeness
