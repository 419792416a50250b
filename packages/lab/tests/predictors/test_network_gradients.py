"""The gradients of networks that combine latent vectors of queries and of targets."""

import pytest

from packages.router.tests.predictors.gradient_contract import (
    FEATURES,
    RATES,
    TARGETS,
    TorchOutputs,
    TorchPass,
    check_autograd,
    check_finite_differences,
)
from prefill_router.predictors.networks import Architecture
from prefill_router_lab.predictors.latent import Factorisation, ItemResponse, PairwiseFactorisation
from prefill_router_lab.predictors.latent_architectures import Factors, Items, Preferences

CASES: dict[str, Architecture] = {
    "factors": Factors(Factorisation.describe((FEATURES, 4), TARGETS), RATES),
    "preferences": Preferences(PairwiseFactorisation.describe((FEATURES, 4), TARGETS), RATES),
    "items": Items(ItemResponse.describe((FEATURES, 6, 2), TARGETS), RATES),
    "items of one dimension": Items(ItemResponse.describe((FEATURES, 1), TARGETS), RATES),
}
UNTRAINED = {"preferences": {"slope", "offset"}}
"""What is fitted on held-out rows, after training."""


def forward_in_torch(architecture: Architecture, step: TorchPass) -> TorchOutputs:
    from torch.nn.functional import normalize, softplus

    if isinstance(architecture, Items):
        units = step.hidden(architecture.network)
        matters = step.linear(units, "discrimination")
        if matters.shape[-1] == 1:
            matters = softplus(matters)
        ability = step.parameters["ability"].mT
        return TorchOutputs(matters @ ability - step.linear(units, "difficulty"))
    query = step.drop(step.linear(step.rows, "query"), 1) * step.parameters["combine"]
    vectors = step.parameters["target"]
    if isinstance(architecture, Factors):
        return TorchOutputs(query @ vectors.mT)
    scores = query @ normalize(vectors, dim=-1).mT
    ahead = scores - scores.mean(-1, keepdim=True)
    level = step.linear(step.rows, "level").expand_as(ahead)
    return TorchOutputs(level, preference=ahead)


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_finite_differences(name: str) -> None:
    check_finite_differences(CASES[name], UNTRAINED.get(name, set()))


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_autograd(name: str) -> None:
    check_autograd(CASES[name], forward_in_torch)
