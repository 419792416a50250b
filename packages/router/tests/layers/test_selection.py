"""Selection finds the planted layer, fairly, and says when it can't judge."""

from typing import Literal

import numpy as np
import pytest

from packages.router.tests.fakes.planted_signal import (
    PLANTED,
    SITES,
    permute_rows,
    relabel,
    shuffle_labels,
    states_of,
)
from prefill_router.activations import MemoryActivations, Site
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError, FitError, ProvenanceError
from prefill_router.layers import candidate_sites, search, select, survey
from prefill_router.testing import FakeEncoder, make_routing_dataset

pytestmark = pytest.mark.slow

DIM = 6
Automatic = Literal["fisher", "grid"]


@pytest.fixture(scope="module")
def dataset() -> RoutingDataset:
    return make_routing_dataset(queries=300, missing=0.1)


@pytest.fixture(scope="module")
def states(dataset: RoutingDataset) -> MemoryActivations:
    return states_of(dataset)


@pytest.mark.parametrize("method", ["fisher", "grid"])
@pytest.mark.parametrize("planted", [0, 2, 3, 4])
def test_a_planted_layer_is_found(dataset: RoutingDataset, method: Automatic, planted: int) -> None:
    states = states_of(dataset, encoder=FakeEncoder(planted_layer=planted))
    selection = select(states, dataset, method=method, sites=SITES, dim=DIM, dims=(3, DIM))
    assert {choice.site.layer for choice in selection.choices} == {planted}
    assert selection.pool.site.layer == planted
    assert not any(choice.note for choice in selection.choices)


def test_a_planted_layer_is_not_found_by_shuffled_labels(
    dataset: RoutingDataset, states: MemoryActivations
) -> None:
    true = survey(states, dataset, sites=SITES, dim=DIM)
    places = [i for i, site in enumerate(true.sites) if site.layer == PLANTED]
    other_places = [i for i in range(len(true.sites)) if i not in places]
    assert true.fisher[places].min() > 5 * true.fisher[other_places].max()
    chosen = set()
    for seed in range(8):
        chance = shuffle_labels(dataset, seed=seed)
        chance_survey = survey(states, chance, sites=SITES, dim=DIM)
        assert chance_survey.fisher[places].max() < true.fisher[places].min() / 2
        chosen |= {choice.site.layer for choice in select(states, chance, sites=SITES).choices}
    assert len(chosen) >= 4


def test_the_survey_ignores_the_order_of_rows_and_sites(
    dataset: RoutingDataset, states: MemoryActivations
) -> None:
    first = survey(states, dataset, sites=SITES, dim=DIM)
    second = survey(states, permute_rows(dataset), sites=SITES[::-1], dim=DIM)
    assert first.sites == second.sites == tuple(sorted(SITES))
    np.testing.assert_allclose(second.fisher, first.fisher, rtol=1e-4)
    np.testing.assert_allclose(
        second.effective_dimensionality, first.effective_dimensionality, rtol=1e-9
    )
    np.testing.assert_allclose(second.anisotropy, first.anisotropy, atol=1e-12)


def test_the_survey_streams(
    dataset: RoutingDataset, states: MemoryActivations, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = survey(states, dataset, sites=SITES[:3], dim=DIM)
    probed = search(states, dataset, sites=SITES[:3], dims=(DIM,))
    monkeypatch.setattr(
        "prefill_router.geometry.SiteStates.__init__.__kwdefaults__", {"chunk_bytes": 4096}
    )
    pieces = survey(states, dataset, sites=SITES[:3], dim=DIM)
    np.testing.assert_allclose(pieces.fisher, at_once.fisher, rtol=1e-4)
    np.testing.assert_allclose(
        search(states, dataset, sites=SITES[:3], dims=(DIM,)).auc, probed.auc, atol=1e-3
    )


def test_the_pool_takes_one_site_for_all(
    dataset: RoutingDataset, states: MemoryActivations
) -> None:
    selection = select(states, dataset, scope="pool", sites=SITES, dim=DIM)
    assert {choice.site for choice in selection.choices} == {selection.pool.site}
    assert {choice.note for choice in selection.choices} == {"the pool's choice"}
    fisher = survey(states, dataset, sites=SITES, dim=DIM)
    assert selection.pool.score == pytest.approx(fisher.fisher.mean(axis=1).max())


def test_the_grid_takes_the_greatest_auc(
    dataset: RoutingDataset, states: MemoryActivations
) -> None:
    selection = select(states, dataset, method="grid", sites=SITES, dims=(2, 4, 8))
    table = search(states, dataset, sites=SITES, dims=(2, 4, 8))
    for k, choice in enumerate(selection.choices):
        assert choice.score == table.auc[:, :, k].max() == table.at(choice.site, choice.dim)[k]


@pytest.mark.parametrize("method", ["fisher", "grid"])
def test_a_target_that_cannot_be_judged_takes_the_pools_choice(
    dataset: RoutingDataset, states: MemoryActivations, method: Automatic
) -> None:
    correct = dataset.correct.copy()
    correct[:, 0] = 1
    few = np.flatnonzero(correct[:, 1] == 1)[5:]
    correct[few, 1] = np.nan
    train = relabel(dataset, correct)
    selection = select(states, train, method=method, sites=SITES, dim=DIM, dims=(DIM,))
    assert [bool(choice.note) for choice in selection.choices] == [True, True, False]
    assert "too few labels" in selection.choices[0].note
    assert selection.choices[0].site == selection.pool.site == selection.choices[2].site
    assert selection.pool.score == selection.choices[2].score  # the others don't count


def test_small_datasets_are_judged_by_what_there_is() -> None:
    dataset = make_routing_dataset(queries=12)
    selection = select(states_of(dataset), dataset, sites=SITES, dim=3)
    assert all("too few labels" in choice.note for choice in selection.choices)


@pytest.mark.parametrize("method", ["fisher", "grid"])
def test_one_class_alone_is_refused(
    dataset: RoutingDataset, states: MemoryActivations, method: Automatic
) -> None:
    train = relabel(dataset, np.ones_like(dataset.correct))
    with pytest.raises(FitError, match="pin the site"):
        select(states, train, method=method, sites=SITES[:2], dim=DIM, dims=(DIM,))


def test_the_lowest_of_equal_sites_wins(dataset: RoutingDataset, states: MemoryActivations) -> None:
    best = states.states[Site(PLANTED, "last")]
    same = {Site(layer, "last"): best for layer in (4, 2, 3)}
    twins = MemoryActivations(states.provenance, states.keys, same, states.counts)
    selection = select(twins, dataset, dim=DIM)
    assert {choice.site for choice in selection.choices} == {Site(2, "last")}


def test_a_pinned_site_is_taken(dataset: RoutingDataset, states: MemoryActivations) -> None:
    site = Site(1, "mean")
    selection = select(states, dataset, method="pinned", pinned=site, dim=5)
    assert {(choice.site, choice.dim, choice.score) for choice in selection.choices} == {
        (site, 5, None)
    }
    with pytest.raises(ProvenanceError, match=r"lacks the site mean\.9"):
        select(states, dataset, method="pinned", pinned=Site(9, "mean"))
    with pytest.raises(ConfigError, match="give a pinned site"):
        select(states, dataset, method="pinned")
    with pytest.raises(ConfigError, match="give a pinned site"):
        select(states, dataset, method="fisher", pinned=site)


def test_each_target_can_have_a_pinned_site(
    dataset: RoutingDataset, states: MemoryActivations
) -> None:
    first, second, third = dataset.pool.names
    sites = {second: Site(2, "last"), first: Site(1, "mean"), third: Site(1, "mean")}
    selection = select(states, dataset, method="pinned", pinned=sites, dim=5)
    assert [choice.site for choice in selection.choices] == [sites[n] for n in dataset.pool.names]
    for wrong in ({first: Site(1, "mean")}, {**sites, "nobody": Site(1, "mean")}):
        with pytest.raises(ConfigError, match="pin one site for each"):
            select(states, dataset, method="pinned", pinned=wrong)


def test_candidates_are_the_upper_half_unless_asked(states: MemoryActivations) -> None:
    names = [site.name for site in candidate_sites(states)]
    assert names == ["last.2", "mean.2", "last.3", "mean.3", "last.4", "mean.4"]
    assert len(candidate_sites(states, all_layers=True)) == 10
    assert next(s.name for s in candidate_sites(states, poolings=("mean",))) == "mean.2"
    low = MemoryActivations(
        states.provenance, states.keys, {SITES[0]: states.states[SITES[0]]}, states.counts
    )
    with pytest.raises(ConfigError, match=r"holds last\.0; it needs a site of layers 2 to 4"):
        candidate_sites(low)


def test_the_grid_refuses_nothing_to_search(
    dataset: RoutingDataset, states: MemoryActivations
) -> None:
    for dims in ((), (0,)):
        with pytest.raises(ConfigError, match="at least one"):
            search(states, dataset, sites=SITES, dims=dims)
