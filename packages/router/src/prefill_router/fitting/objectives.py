"""The metrics that a choice among recipes can optimise."""

from collections.abc import Mapping
from typing import Literal, get_args

Objective = Literal["choice", "auc", "brier", "headroom"]
WORDS: Mapping[Objective, str] = {
    "choice": "choice AUC",
    "auc": "mean AUC",
    "brier": "Brier score",
    "headroom": "headroom captured",
}
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
MARGINS: dict[Objective, float] = {
    "choice": 0.01,
    "auc": 0.01,
    "brier": 0.004,
    "headroom": 0.15,
}
"""How far behind the best on the same folds a candidate is stopped."""
