"""Routes each request to the language model that should answer it.

    from prefill_router import Router

    decision = Router.load("router").route("Prove that 2 is irrational.")
    decision.target, decision.correctness, decision.estimated_cost

The public names below are loaded when they are first used, so importing the package loads neither
torch nor transformers.
"""

from prefill_router.lazy_imports import face

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = face(__name__, __file__)
