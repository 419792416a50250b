"""The decision: which targets may answer a request, which of them does, and why.

candidates         which targets may answer, and what each would cost
refusals           what a client is told where none may
affinity           who holds a conversation, a tool loop or a stored response
budgets            how spending lowers the trade-off
selection          the free choice: policy, fallback, routed share, cost of a switch
unrouted_targets   targets that the pool has and the router doesn't know
decider            all of these in their order
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
