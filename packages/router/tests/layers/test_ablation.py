"""The layer-selection ablation, from tables made by hand and from planted states."""

import json

import numpy as np
import pytest

from packages.router.tests.fakes.planted_signal import PLANTED, SITES, states_of
from prefill_router.activations import Site
from prefill_router.errors import ConfigError
from prefill_router.layers import Grid, Survey, ablation, search, survey
from prefill_router.testing import make_routing_dataset

NAMES = ["Random", "Last", "d_eff", "alpha", "Fisher J", "BestLR"]
HERE = (Site(2, "last"), Site(2, "mean"), Site(3, "last"), Site(3, "mean"))


def by_hand() -> tuple[Survey, Grid]:
    fisher = np.array([[1, 9, 0], [5, 1, 0], [2, 8, 0], [0, 0, np.nan]], dtype=np.float64)
    auc = np.array([[60, 70, 50], [80, 62, 50], [65, 75, 50], [50, 52, np.nan]]) / 100
    survey_by_hand = Survey(
        ("a", "b", "c"),
        HERE,
        100,
        np.array([1.0, 3.0, 2.0, 4.0]),
        np.array([0.9, 0.1, 0.3, 0.2]),
        fisher,
    )
    return survey_by_hand, Grid(("a", "b", "c"), HERE, (100,), auc[:, None, :])


def test_each_selector_selects_what_it_says() -> None:
    result = ablation(*by_hand(), poolings=("last", "mean"))
    assert [s.name for s in result.selectors] == NAMES
    assert result.targets == ("a", "b")  # c can't be judged everywhere
    expected = {
        "Random": (60 + 70 + 80 + 62 + 65 + 75 + 50 + 52) / 8,
        "Last": (65 + 75 + 50 + 52) / 4,
        "d_eff": (50 + 52) / 2,
        "alpha": (80 + 62) / 2,
        "Fisher J": (80 + 70) / 2,
        "BestLR": (80 + 75) / 2,
    }
    for name, value in expected.items():
        assert result[name].auc == pytest.approx(value / 100), name
    assert result["Fisher J"].sites == (HERE[1], HERE[0])


def test_last_token_sites_alone_by_default() -> None:
    last = ablation(*by_hand())
    assert last.targets == ("a", "b", "c")
    assert last["Last"].auc == pytest.approx((65 + 75 + 50) / 300)
    assert last["Fisher J"].sites == (HERE[2], HERE[0], HERE[0])
    assert json.loads(json.dumps(last.to_dict()))["auc"]["BestLR"] == last["BestLR"].auc


@pytest.mark.slow
def test_nothing_exceeds_the_oracle_and_fisher_reaches_it_where_a_layer_is_planted() -> None:
    dataset = make_routing_dataset(queries=300)
    states = states_of(dataset)
    layer_survey = survey(states, dataset, sites=SITES, dim=6)
    result = ablation(layer_survey, search(states, dataset, sites=SITES, dims=(6,)), dim=6)
    assert max(s.auc for s in result.selectors) == result["BestLR"].auc
    assert result["Fisher J"].auc == result["BestLR"].auc > result["Random"].auc + 0.1
    assert {site.layer for site in result["BestLR"].sites or ()} == {PLANTED}
    assert result["Last"].auc == pytest.approx(0.5, abs=0.1)


def test_nothing_to_compare_is_refused() -> None:
    survey_by_hand, grid = by_hand()
    none = Survey(survey_by_hand.targets, HERE, 100, *[np.ones(4)] * 2, np.full((4, 3), np.nan))
    with pytest.raises(ConfigError, match="no target"):
        ablation(none, grid)
    only = Survey(
        survey_by_hand.targets, HERE[:1], 100, *[np.ones(1)] * 2, survey_by_hand.fisher[:1]
    )
    with pytest.raises(ConfigError, match="poolings"):
        ablation(only, grid, poolings=("mean",))
