"""The decision: which targets may answer a request, which one does, and why.

candidates         which targets may answer, and what each would cost
refusals           the error that a client gets where none may
affinity           which target has a conversation, a tool loop or a stored response
budgets            how spending lowers the trade-off
selection          the free choice: policy, fallback, routed share, cost of a switch
unrouted_targets   targets in the pool that the router doesn't know
decider            runs all of these in order
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
