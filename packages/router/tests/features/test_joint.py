"""Several sites in one block: what PCA sees, what the test rows can't change, what is refused."""

from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from packages.router.tests.features.family_contract import check_family
from prefill_router.activations import MemoryActivations, Site
from prefill_router.encoders import OWN
from prefill_router.errors import ConfigError
from prefill_router.features import Need, PromptStates
from prefill_router.features.prefill import Joint, JointConfig
from prefill_router.testing import FakeEncoder, make_routing_dataset

DATASET = make_routing_dataset(queries=90)
TRAIN = DATASET.select(DATASET.query_ids[:60])
SITES = (Site(2, "mean"), Site(3, "mean"), Site(4, "mean"))


def encode_states(name: str = "fake", hidden: int = 8) -> MemoryActivations:
    encoder = FakeEncoder(name=name, hidden_size=hidden)
    return encoder.encode(DATASET.queries, [*SITES, Site(4, "last")])


def fit_joint(states: list[MemoryActivations], **options: Any) -> Joint:
    return JointConfig(**{"dim": 5, **options}).fit(TRAIN, states)


def columns(family: Joint, states: list[MemoryActivations]) -> np.ndarray:
    return family.read(PromptStates.of_dataset(DATASET, states))


def standardise(states: MemoryActivations, site: Site) -> np.ndarray:
    """Every row, standardised by the train rows."""
    rows = states.read(site, DATASET.prompt_keys).astype(np.float64)
    scaled = StandardScaler().fit(rows[:60]).transform(rows)
    return np.asarray(scaled) * np.sqrt(59 / 60)


def assert_components(components: np.ndarray, expected: np.ndarray) -> None:
    """Check that both are equal up to the sign of each column."""
    pca = PCA(n_components=components.shape[1], svd_solver="full").fit(expected[:60])
    plain = pca.transform(expected)
    signs = np.sign((plain * components).sum(axis=0))
    np.testing.assert_allclose(components, plain * signs, atol=2e-4)


@pytest.mark.parametrize("options", [{}, {"combine": "averaged"}])
def test_contract(options: dict[str, Any]) -> None:
    states = [encode_states(), encode_states("other")]
    check_family(fit_joint(states, **options), PromptStates.of_dataset(DATASET, states))


def test_sites_side_by_side_have_one_pca() -> None:
    states = encode_states()
    together = np.concatenate([standardise(states, site) for site in SITES], axis=1)
    sites = tuple(site.name for site in SITES)
    family = fit_joint([states], encoders=("fake",), sites={"fake": sites})
    assert_components(columns(family, [states]), together)


def test_averaged_sites_have_the_pca_of_their_mean() -> None:
    states = encode_states()
    mean = np.mean([standardise(states, site) for site in SITES], axis=0)
    sites = tuple(site.name for site in SITES)
    family = fit_joint([states], encoders=("fake",), sites={"fake": sites}, combine="averaged")
    assert_components(columns(family, [states]), mean)


def test_encoders_of_different_widths_stand_side_by_side() -> None:
    states = [encode_states(), encode_states("wide", hidden=12)]
    family = fit_joint(states, encoders=("wide", "fake"), sites={"fake": ("mean.2",)})
    wide = states[1].provenance
    assert family.sites_of(wide) == tuple(s for s in SITES if s.layer >= wide.num_layers / 2)
    assert family.sites_of(states[0].provenance) == (Site(2, "mean"),)
    places = [(states[1], site) for site in family.sites_of(wide)] + [(states[0], Site(2, "mean"))]
    together = np.concatenate([standardise(*place) for place in places], axis=1)
    assert_components(columns(family, states), together)


def test_only_train_rows_are_seen() -> None:
    states = encode_states()
    altered = {site: rows.copy() for site, rows in states.states.items()}
    last = [states.keys.index(key) for key in DATASET.prompt_keys[60:]]
    for rows in altered.values():
        rows[last] *= 7
    other = MemoryActivations(
        states.provenance, states.keys, altered, states.counts, states.rounding
    )
    first, second = fit_joint([states]), fit_joint([other])
    assert all(np.array_equal(array, second.tensors()[n]) for n, array in first.tensors().items())


def test_by_default_all_candidates_of_the_pooling_are_read() -> None:
    states = encode_states()
    assert fit_joint([states]).sites_of(states.provenance) == SITES
    assert fit_joint([states], poolings=("last",)).sites_of(states.provenance) == (Site(4, "last"),)


def test_needs_are_the_sites_that_are_named() -> None:
    config = JointConfig(encoders=("a", "b"), sites={"a": ("mean.2", "last.4")})
    assert config.needs == (Need("a", (Site(2, "mean"), Site(4, "last"))), Need("b"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoders": ("a",), "sites": {"b": ("mean.1",)}}, "only for encoders of the features"),
        ({"encoders": ("a",), "sites": {"a": ()}}, "no site"),
        ({"encoders": ("a",), "sites": {"a": ("middle",)}}, "isn't a site"),
    ],
)
def test_options_that_are_none(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        JointConfig(**options)


def test_sites_of_different_widths_have_no_average() -> None:
    with pytest.raises(ConfigError, match="sites of the same width"):
        fit_joint([encode_states(), encode_states("wide", hidden=12)], combine="averaged")
    with pytest.raises(ConfigError, match="sites of the same width"):
        fit_joint([])


def test_encoders_that_output_one_vector_are_left_out() -> None:
    base = encode_states("sentence:tiny")
    own = MemoryActivations(
        base.provenance, base.keys, {OWN: base.states[SITES[0]]}, base.counts, base.rounding
    )
    assert [s.provenance.encoder for s in fit_joint([own, encode_states()]).sources] == ["fake"]


def test_the_store_that_holds_the_site_is_read() -> None:
    complete = encode_states()
    lacking = MemoryActivations(
        complete.provenance,
        complete.keys,
        {SITES[0]: complete.states[SITES[0]]},
        complete.counts,
        complete.rounding,
    )
    family = fit_joint([lacking, complete], encoders=("fake",), sites={"fake": ("mean.4",)})
    assert family.sites_of(complete.provenance) == (SITES[2],)
