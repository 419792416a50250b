"""A language model's signals as features."""

import numpy as np
import pytest

from packages.router.tests.fakes.planted_signal import states_of
from packages.router.tests.features.family_contract import check_family
from prefill_router.activations import MemoryActivations, Provenance
from prefill_router.encoders import OWN
from prefill_router.errors import ConfigError, CorruptError, FitError
from prefill_router.features import Need, PromptStates
from prefill_router.features.base import FAMILIES, load_family
from prefill_router.features.single_site import Signals, SignalsConfig
from prefill_router.testing import make_routing_dataset

DATASET = make_routing_dataset(queries=50)
TRAIN = DATASET.select(DATASET.query_ids[:40])
CONFIG = SignalsConfig(encoder="signals:tiny")


def make_states(*, outlier: bool = False, width: int = 3) -> MemoryActivations:
    random = np.random.default_rng(0)
    log_probability = -random.uniform(2, 6, len(DATASET)).astype(np.float32)
    entropy = random.uniform(1, 5, len(DATASET)).astype(np.float32)
    rows = np.stack([log_probability, np.exp(-log_probability), entropy], axis=1)
    if outlier:
        rows[0] = [-80, np.exp(np.float32(80)), 3]
    made_by = Provenance(
        encoder="signals:tiny",
        revision="sha256:0",
        template="plain",
        template_hash="",
        max_tokens=9,
        dtype="float32",
        num_layers=1,
        hidden_size=width,
    )
    keys = DATASET.prompt_keys
    return MemoryActivations(made_by, keys, {OWN: rows[:, :width]}, np.ones(len(keys), np.int64))


def test_contract() -> None:
    states = make_states()
    check_family(CONFIG.fit(TRAIN, [states]), PromptStates.of_dataset(DATASET, [states]))


def test_columns_are_standardised_on_train_rows_the_perplexity_as_its_logarithm() -> None:
    states = make_states()
    rows = CONFIG.fit(TRAIN, [states]).read(PromptStates.of_dataset(DATASET, [states]))
    np.testing.assert_allclose(rows[:40].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(rows[:40].std(axis=0, ddof=1), 1, atol=1e-5)
    np.testing.assert_allclose(rows[:, 1], -rows[:, 0], atol=1e-4)
    assert np.abs(np.corrcoef(rows[:, 2], rows[:, 0])[0, 1]) < 0.5


def test_one_odd_prompt_does_not_dwarf_the_others() -> None:
    states = make_states(outlier=True)
    rows = CONFIG.fit(TRAIN, [states]).read(PromptStates.of_dataset(DATASET, [states]))
    assert np.isfinite(rows).all()
    assert rows[1:40, 1].std() > 0.05


def test_labels_are_not_looked_at_and_test_rows_neither() -> None:
    states = make_states()
    family = CONFIG.fit(TRAIN, [states])
    changed = states.states[OWN].copy()
    changed[40:] = 9
    other = MemoryActivations(states.provenance, states.keys, {OWN: changed}, states.counts)
    again = CONFIG.fit(TRAIN, [other], seed=7)
    for name, array in family.tensors().items():
        np.testing.assert_array_equal(again.tensors()[name], array)


def test_what_makes_no_sense_is_refused() -> None:
    assert SignalsConfig().needs == (Need("signals:gpt2", (OWN,)),)
    with pytest.raises(ConfigError, match="signals:gpt2"):
        SignalsConfig(encoder="gpt2")
    with pytest.raises(ConfigError, match="2 wide; signals are 3"):
        CONFIG.fit(TRAIN, [make_states(width=2)])
    with pytest.raises(ConfigError, match="need states of the encoder 'signals:tiny'"):
        CONFIG.fit(TRAIN, [states_of(DATASET)])
    same = make_states()
    same.states[OWN][:] = 2
    with pytest.raises(FitError, match="are the same"):
        CONFIG.fit(TRAIN, [same])


def test_saved_signals_of_another_width_are_refused() -> None:
    family = CONFIG.fit(TRAIN, [make_states()])
    config = family.to_dict()
    for change in ({"hidden_size": 4}, {"num_layers": 0}):
        with pytest.raises(CorruptError):
            load_family({**config, "states": {**config["states"], **change}}, family.tensors())
    with pytest.raises(CorruptError, match="has 1 layers"):
        load_family({**config, "site": "own.2"}, family.tensors())


def test_it_is_found_by_its_kind() -> None:
    entry = FAMILIES.find("signals")
    assert (entry.config, entry.family) == (SignalsConfig, Signals)
