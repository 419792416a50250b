"""Routes each request to the language model that should answer it.

    from prefill_router import Router

    decision = Router.load("router").route("Prove that 2 is irrational.", lam=0.5)
    decision.target, decision.correctness, decision.estimated_cost

The public names below are loaded when they are first used, so importing the package loads neither
torch nor transformers.
"""

from typing import TYPE_CHECKING

from prefill_router.lazy_imports import lazy_attributes

if TYPE_CHECKING:
    from prefill_router.activations import ActivationStore
    from prefill_router.data import Message, Query, RoutingDataset, Split, read_dataset, split
    from prefill_router.encoders import encode_dataset, load_encoder
    from prefill_router.evaluation import evaluate
    from prefill_router.fitting import FitConfig, fit_router
    from prefill_router.router import Decision, Router
    from prefill_router.targets import Pool, Target, read_pool

_HOME = {
    "ActivationStore": "activations",
    "Decision": "router",
    "FitConfig": "fitting",
    "Message": "data",
    "Pool": "targets",
    "Query": "data",
    "Router": "router",
    "RoutingDataset": "data",
    "Split": "data",
    "Target": "targets",
    "encode_dataset": "encoders",
    "evaluate": "evaluation",
    "fit_router": "fitting",
    "load_encoder": "encoders",
    "read_dataset": "data",
    "read_pool": "targets",
    "split": "data",
}

__version__ = "0.1.0"

__all__ = [
    "ActivationStore",
    "Decision",
    "FitConfig",
    "Message",
    "Pool",
    "Query",
    "Router",
    "RoutingDataset",
    "Split",
    "Target",
    "encode_dataset",
    "evaluate",
    "fit_router",
    "load_encoder",
    "read_dataset",
    "read_pool",
    "split",
]


__getattr__ = lazy_attributes(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
