"""What deciding recorded requests again needs of each; the rest of a receipt isn't held on to."""

from array import array
from collections import Counter
from collections.abc import Mapping
from typing import final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.gateway.receipts.receipt import Receipt
from prefill_router.gateway.receipts.scaled import policy_of, scale_of
from prefill_router.policy import Policy

_AGAIN = ("policy", "session", "share")
_WITHOUT: Mapping[str, str] = {
    "named": "the client named the target",
    "tool_loop": "waited for tool results",
    "stored": "went on from a stored response",
    "fallback": "had no forecast",
}


@final
class Gathered:
    """Requests that can be decided again, a few hundred bytes each.

    Attributes:
        ids: Of the decisions.
        policies: Who chose; the same object for all that it decided.
        targets: The names of the columns.
        left_out: How many receipts can't be decided again, by the reason.
    """

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.policies: list[Policy] = []
        self.targets: dict[str, int] = {}
        self.left_out: Counter[str] = Counter()
        self._policies: dict[str, Policy] = {}
        self._numbers, self._who, self._cells = array("d"), array("q"), array("d")

    def add(self, receipt: Receipt) -> None:
        """Take one, or count why not."""
        policy, scale, why = policy_of(receipt), scale_of(receipt), _why_not(receipt)
        if why or policy is None or scale is None:
            self.left_out[why or "doesn't hold the policy or the scale of costs"] += 1
            return
        choice, costs = receipt.choice, _costs(receipt)
        for name, probability in choice.correctness.items():
            column = self.targets.setdefault(name, len(self.targets))
            may = name in choice.order
            self._cells.extend((len(self.ids), column, probability, costs[name], may))
        alone = choice.policy_target or choice.target
        self._who.extend((self.targets[choice.target], self.targets[alone]))
        lam = float("nan") if choice.lam is None else choice.lam
        observed = _observed(receipt)
        priced = bool(choice.estimated_cost)
        self._numbers.extend((scale.low, scale.high, lam, observed, choice.input_tokens, priced))
        self.ids.append(choice.id)
        self.policies.append(self._policies.setdefault(repr(policy), policy))

    def numbers(self) -> Float[NDArray[np.float64], "request 6"]:
        """Of each: its scale's low and high end, lam, observed cost, input tokens; 1 if priced."""
        return np.array(self._numbers, dtype=np.float64).reshape(-1, 6)

    def who(self) -> Int[NDArray[np.int64], "request 2"]:
        """The columns of who was asked first, and of whom the policy alone chose."""
        return np.array(self._who, dtype=np.int64).reshape(-1, 2)

    def tables(self) -> Float[NDArray[np.float64], "3 request target"]:
        """Probabilities, estimated costs, and 1 for who might answer; NaN for who isn't known."""
        cells = np.array(self._cells, dtype=np.float64).reshape(-1, 5)
        tables = np.full((3, len(self.ids), len(self.targets)), np.nan)
        rows, columns = cells[:, :2].astype(np.int64).T
        tables[:, rows, columns] = cells[:, 2:].T
        return tables


def _why_not(receipt: Receipt) -> str:
    """Why a request can't be decided again; empty where it can."""
    choice = receipt.choice
    if choice.reason not in _AGAIN or choice.fallback is not None:
        return _WITHOUT.get(choice.reason, _WITHOUT["fallback"])
    known = {*choice.order, choice.policy_target or choice.target} <= choice.correctness.keys()
    priced = not choice.estimated_cost or choice.correctness.keys() <= choice.estimated_cost.keys()
    if not known or not priced or choice.lam is None:
        return "doesn't hold every target's probability and cost"
    return ""


def _costs(receipt: Receipt) -> Mapping[str, float]:
    """Estimated costs with nothing cached; zero where no prices were known, as at the decision."""
    choice = receipt.choice
    if not choice.estimated_cost:
        return dict.fromkeys(choice.correctness, 0.0)
    return {
        name: cost + choice.cached.get(name, 0.0) for name, cost in choice.estimated_cost.items()
    }


def _observed(receipt: Receipt) -> float:
    first = receipt.outcome.target == receipt.choice.target
    return receipt.cost if first and receipt.cost is not None else float("nan")
