"""Small, quick options of the lab's predictors with networks of their own."""

from packages.router.tests.predictors.fit_contract import Case
from packages.router.tests.predictors.network_cases import QUICK
from prefill_router_lab.predictors.latent import FactorisationConfig, IRTConfig, PairwiseConfig
from prefill_router_lab.predictors.perceptrons import MLPConfig, TargetMultiTaskConfig

CASES = {
    "mlp": Case(config=MLPConfig(**QUICK, hidden=(8,))),
    "multitask": Case(config=TargetMultiTaskConfig(**QUICK, hidden=(8,))),
    "matrix_factorisation": Case(config=FactorisationConfig(**QUICK, dimensions=6)),
    "pairwise_factorisation": Case(config=PairwiseConfig(**QUICK, dimensions=6)),
    "irt": Case(config=IRTConfig(**QUICK, dimensions=6, hidden=())),
    "irt of one dimension": Case(config=IRTConfig(**QUICK, hidden=(8,))),
}
