from .affinity import (
    AffinityPlace as AffinityPlace,
    ResponseOwners as ResponseOwners,
    SessionRow as SessionRow,
    Sessions as Sessions,
    SessionState as SessionState,
    affinity_places as affinity_places,
    decision_id as decision_id,
    session_name as session_name,
    share_of as share_of,
)
from .budgets import (
    Allowance as Allowance,
    Budgets as Budgets,
    BudgetState as BudgetState,
    Per as Per,
    SteadyClock as SteadyClock,
)
from .candidates import (
    CachePrices as CachePrices,
    CostScores as CostScores,
    RequestCosts as RequestCosts,
    RequestEstimate as RequestEstimate,
)
from .decider import Decider as Decider, OpenDecision as OpenDecision, RouterParts as RouterParts
from .latency import TargetSpeeds as TargetSpeeds, order_ready as order_ready
from .selection import TargetChooser as TargetChooser, policy_order as policy_order
