from .leases import BudgetLeases as BudgetLeases
from .state import SharedState as SharedState
