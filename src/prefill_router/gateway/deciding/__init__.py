"""Deciding: which targets may answer, which of them does, and why."""

from prefill_router.gateway.deciding.budgets import Allowance, Budgets, BudgetState
from prefill_router.gateway.deciding.choosing import Chooser
from prefill_router.gateway.deciding.costs import Costs, Scoring
from prefill_router.gateway.deciding.decider import Decider, RouterParts
from prefill_router.gateway.deciding.ids import decision_id
from prefill_router.gateway.deciding.keepers import Keepers
from prefill_router.gateway.deciding.known import Known
from prefill_router.gateway.deciding.question import Question
from prefill_router.gateway.deciding.sessions import Row, Seat, Sessions, session_name
from prefill_router.gateway.deciding.steady import SteadyClock

__all__ = [
    "Allowance",
    "BudgetState",
    "Budgets",
    "Chooser",
    "Costs",
    "Decider",
    "Keepers",
    "Known",
    "Question",
    "RouterParts",
    "Row",
    "Scoring",
    "Seat",
    "Sessions",
    "SteadyClock",
    "decision_id",
    "session_name",
]
