"""Small, quick options of every predictor with networks of its own."""

from typing import Any

from packages.router.tests.predictors.fit_contract import Case
from prefill_router.predictors.networks.latent import FactorisationConfig, IRTConfig, PairwiseConfig
from prefill_router.predictors.networks.perceptrons import (
    MLPConfig,
    TargetMultiTaskConfig,
    UnifiedConfig,
)

QUICK: dict[str, Any] = {
    "seeds": 1,
    "max_epochs": 12,
    "batch_size": 64,
    "learning_rate": 0.02,
    "weight_decay": 0.01,
    "dropout": 0.0,
    "input_dropout": 0.0,
}
CASES = {
    "mlp": Case(config=MLPConfig(**QUICK, hidden=(8,))),
    "multitask": Case(config=TargetMultiTaskConfig(**QUICK, hidden=(8,))),
    "unified_multitask": Case(config=UnifiedConfig(**QUICK, hidden=(16, 8))),
    "matrix_factorisation": Case(config=FactorisationConfig(**QUICK, dimensions=6)),
    "pairwise_factorisation": Case(config=PairwiseConfig(**QUICK, dimensions=6)),
    "irt": Case(config=IRTConfig(**QUICK, dimensions=6, hidden=())),
    "irt of one dimension": Case(config=IRTConfig(**QUICK, hidden=(8,))),
}
