"""Every family of features goes through the suite with its default options, or nearly so."""

from collections.abc import Callable

import pytest

from packages.router.tests.fakes.planted_signal import states_of
from packages.router.tests.features.family_contract import check_family
from packages.router.tests.features.test_signals import make_states as signals_of
from packages.router.tests.part_cases import check_cases
from prefill_router.activations import Activations
from prefill_router.features import FAMILIES, FamilyConfig, JointConfig, PrefillConfig, PromptStates
from prefill_router.features.complexity import ComplexityConfig
from prefill_router.features.neighbours import NeighboursConfig
from prefill_router.features.single_site import EmbeddingConfig, SignalsConfig
from prefill_router.testing import FakeEncoder, make_routing_dataset

DATASET = make_routing_dataset(queries=50)
TRAIN = DATASET.select(DATASET.query_ids[:40])


def encode() -> list[Activations]:
    return [states_of(DATASET, encoder=FakeEncoder())]


CASES: dict[str, tuple[FamilyConfig, Callable[[], list[Activations]]]] = {
    "prefill": (PrefillConfig(dim=5), encode),
    "joint": (JointConfig(dim=5), encode),
    "embedding": (EmbeddingConfig(encoder="fake", site="mean.4"), encode),
    "neighbours": (NeighboursConfig(encoder="fake", site="mean.3", ks=(2, 5)), encode),
    "complexity": (ComplexityConfig(), list),
    "signals": (SignalsConfig(encoder="signals:tiny"), lambda: [signals_of()]),
}
"""The options of each kind, and the states that it reads."""


@pytest.mark.parametrize("kind", CASES)
def test_every_family_keeps_the_contract(kind: str) -> None:
    config, make_states = CASES[kind]
    states = make_states()
    check_family(config.fit(TRAIN, states), PromptStates.of_dataset(DATASET, states))


def test_every_family_has_a_case() -> None:
    to = "CASES in packages/router/tests/features/test_family_kinds.py"
    check_cases(FAMILIES.own, CASES, to=to, guide="features.md")
    for kind in FAMILIES.own:
        entry = FAMILIES.find(kind)
        assert entry.family.kind == kind, f"set {entry.family.__name__}.kind to {kind!r}"
        assert type(CASES[kind][0]) is entry.config, f"the case {kind!r} is of another kind"
