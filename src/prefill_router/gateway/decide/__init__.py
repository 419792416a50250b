"""The decision: which targets may answer a request, which of them does, and why.

candidates         which targets may answer, and what each would cost
refusals           what a client is told where none may
affinity           who holds a conversation, a tool loop or a stored response
budgets            how spending lowers the trade-off
selection          the free choice: policy, fallback, routed share, cost of a switch
unrouted_targets   targets that the pool has and the router doesn't know
decider            all of these in their order
"""

from prefill_router.gateway.decide.affinity import (
    ResponseOwners,
    SessionRow,
    Sessions,
    SessionState,
    session_name,
)
from prefill_router.gateway.decide.budgets import Allowance, Budgets, BudgetState, SteadyClock
from prefill_router.gateway.decide.candidates import CostScores, RequestCosts, RequestEstimate
from prefill_router.gateway.decide.decider import Decider, OpenDecision, RouterParts
from prefill_router.gateway.decide.selection import TargetChooser, decision_id
from prefill_router.gateway.records import RoutingRequest

__all__ = [
    "Allowance",
    "BudgetState",
    "Budgets",
    "CostScores",
    "Decider",
    "OpenDecision",
    "RequestCosts",
    "RequestEstimate",
    "ResponseOwners",
    "RouterParts",
    "RoutingRequest",
    "SessionRow",
    "SessionState",
    "Sessions",
    "SteadyClock",
    "TargetChooser",
    "decision_id",
    "session_name",
]
