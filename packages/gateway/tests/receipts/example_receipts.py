"""Receipts as a gateway would write them; each is a function of a number."""

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from prefill_router.cost import CostScale
from prefill_router.data import RoutingDataset
from prefill_router.endpoints import Usage
from prefill_router.policy import Lambda
from prefill_router.router.decision import decide
from prefill_router_gateway import Receipt
from prefill_router_gateway.receipts import Feedback, insert_rows, open_store, scale_details
from prefill_router_gateway.receipts.rows import to_row
from prefill_router_gateway.records import RequestOutcome, RoutingDecision, TargetAttempt

START = 1_790_000_000.0
TARGETS = ("small", "middle", "large")
SCALE = CostScale(0.0, 0.01)
CHANCES = {"small": (0.3, 0.9), "middle": (0.5, 0.8), "large": (0.9, 0.95)}
COSTS = {"small": 0.0001, "middle": 0.001, "large": 0.01}


def receipt_id(number: int) -> str:
    return f"pr_{number:032x}"


def example_choice(number: int, **fields: Any) -> RoutingDecision:
    """A decision at lam 0.9; odd numbers are hard prompts and go to the large target."""
    hard = number % 2
    chances = {name: CHANCES[name][1 - hard] for name in TARGETS}
    order = ("large", "middle", "small") if hard else ("small", "middle", "large")
    defaults: dict[str, Any] = {
        "id": receipt_id(number),
        "order": order,
        "reason": "policy",
        "lam": 0.9,
        "lam_asked": 0.9,
        "correctness": chances,
        "estimated_cost": COSTS,
        "policy_target": order[0],
        "novelty": 0.25,
        "input_tokens": 100 + number,
        "session": f"s{number % 3}",
    }
    return RoutingDecision(**{**defaults, **fields})


def example_outcome(number: int, *, target: str | None, **fields: Any) -> RequestOutcome:
    usage = Usage(
        input_tokens=100 + number,
        cached_tokens=10,
        output_tokens=20,
        reasoning_tokens=None,
        reported={"prompt_tokens": 100 + number, "completion_tokens": 20},
    )
    defaults: dict[str, Any] = {
        "kind": "answered",
        "target": target,
        "status": 200,
        "attempts": (
            TargetAttempt(target=target or "small", end="answered", status=200, seconds=0.25),
        ),
        "usage": usage,
        "response_id": f"resp_{number}",
        "tool_calls": (f"call_{number}",),
        "first_byte_seconds": 0.125,
        "total_seconds": 0.5,
    }
    return RequestOutcome(**{**defaults, **fields})


def example_receipt(
    number: int,
    *,
    choice: dict[str, Any] | None = None,
    outcome: dict[str, Any] | None = None,
    **fields: Any,
) -> Receipt:
    decision = example_choice(number, **(choice or {}))
    defaults: dict[str, Any] = {
        "at": START + number,
        "router": "f" * 16,
        "policy": "lambda",
        "endpoint": "chat",
        "requested": "auto",
        "stream": bool(number % 2),
        "key": "team",
        "scored": "last_user",
        "cost": 2 * COSTS.get(decision.target, 0.0),
        "cost_is_estimated": False,
        "decision_seconds": 0.002,
        "forecast_seconds": 0.001,
        "baseline": "large",
        "details": scale_details(SCALE, Lambda()),
    }
    end = example_outcome(number, **{"target": decision.target, **(outcome or {})})
    return Receipt(choice=decision, outcome=end, **{**defaults, **fields})


def plain_values(receipt: Receipt) -> Any:
    """The receipt's fields as JSON values."""
    return json.loads(json.dumps(receipt, default=vars))


def write_receipts(
    file: Path, receipts: Sequence[Receipt], feedback: Sequence[Feedback] = ()
) -> Path:
    with closing(open_store(str(file))) as store:
        insert_rows(store, [to_row(r) for r in receipts], [f.row() for f in feedback])
    return file


def write_traffic(file: Path, dataset: RoutingDataset, *, lam: float = 0.7) -> None:
    """Write a receipt and a score for each query, decided by random probabilities."""
    random = np.random.default_rng(0)
    names = dataset.pool.names
    receipts, feedback = [], []
    for number, query in enumerate(dataset.queries):
        chances = np.sort(random.random(len(names))).round(3)
        costs = 0.0002 * 4.0 ** np.arange(len(names)) * (1 + number % 5)
        decision = decide(
            names,
            chances,
            costs,
            SCALE,
            policy=Lambda(),
            lam=lam,
            input_tokens=100 + number,
            truncated=False,
        )
        target = decision.target
        choice = {
            "order": decision.order,
            "policy_target": target,
            "lam": lam,
            "lam_asked": lam,
            "correctness": decision.correctness,
            "estimated_cost": decision.estimated_cost,
        }
        cost = 1.1 * decision.estimated_cost[target]
        receipts.append(example_receipt(number, choice=choice, prompt=query.prompt, cost=cost))
        label = float(dataset.correct[number, names.index(target)])
        feedback.append(Feedback(id=receipt_id(number), score=label, at=START + number))
    write_receipts(file, receipts, feedback)
