"""The decision: which targets may answer a request, which one does, and why.

candidates   which targets may answer, what each would cost, and the error where none may
affinity     which target has a conversation, a tool loop or a stored response
latency      how long targets take, and how that changes their order
selection    the free choice: the trade-off that budgets leave, policy, fallback, cost of a switch
decider      runs all of these in order, for targets that the router doesn't know too
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
