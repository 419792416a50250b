"""Seed variability: what moves, what doesn't, and that long work goes on where it was."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packages.router.tests.fakes.planted_signal import states_of
from prefill_router.data import split
from prefill_router.errors import ConfigError
from prefill_router.evaluation import evaluate
from prefill_router.fitting import FitConfig, learn, recipe_from_dict
from prefill_router.reporting.report_files import render, write_report_files
from prefill_router.testing import make_routing_dataset
from prefill_router_lab.studies.seeds import (
    ENOUGH,
    NUMBERS,
    SeedOptions,
    SeedStudy,
    seed_study,
    summary,
)

pytestmark = pytest.mark.slow

ANSWERS = make_routing_dataset(queries=200, seed=6)
STATES = states_of(ANSWERS)
SPLIT = split(ANSWERS)
FEATURES: dict[str, Any] = {"features": {"kind": "prefill", "dim": 6}, "shrinkage": False}
TRUNK: dict[str, Any] = {"kind": "shared_trunk", "seeds": 1, "keep": 1, "max_epochs": 5}
RECIPES = {
    "network": recipe_from_dict({**FEATURES, "predictor": TRUNK}),
    "neighbours": recipe_from_dict({**FEATURES, "predictor": {"kind": "knn_score", "k": 9}}),
}


@pytest.fixture(scope="module")
def study() -> SeedStudy:
    return seed_study(ANSWERS, RECIPES, [STATES], SPLIT, SeedOptions(count=4, seed=2))


def test_a_network_moves_and_neighbours_do_not(study: SeedStudy) -> None:
    network, neighbours = study.spreads
    assert not network.deterministic
    assert network.seeds == (2, 3, 4, 5)
    assert network.sd("brier_mean") > 0
    assert neighbours.deterministic
    assert len(neighbours.seeds) == ENOUGH
    assert {neighbours.sd(name) for name in NUMBERS} == {0}


def test_numbers_are_those_of_each_fit(study: SeedStudy) -> None:
    test = ANSWERS.select(SPLIT["test"])
    network = study.spreads[0]
    for place in (0, 3):
        config = FitConfig(recipe=RECIPES["network"], seed=2 + place)
        router = learn(ANSWERS, [STATES], SPLIT, config=config)
        one = evaluate(router.predict(test, stores=[STATES]), test, resamples=0)
        for name in NUMBERS:
            assert network.values[name][place] == pytest.approx(one.headline[name].value)


def test_mean_deviation_and_extremes(study: SeedStudy) -> None:
    values = np.array(study.spreads[0].values["p_auccc"])
    row = study.table()[0]
    assert row["p_auccc"] == pytest.approx(values.mean())
    assert row["p_auccc_sd"] == pytest.approx(np.sqrt(values.var() * 4 / 3))
    assert (row["p_auccc_lowest"], row["p_auccc_highest"]) == (values.min(), values.max())
    assert len(study.rows()) == (4 + ENOUGH) * len(NUMBERS)
    output = study.to_dict()["routers"]
    assert output["neighbours"]["deterministic"] is True
    assert output["network"]["numbers"]["p_auccc"]["sd"] == pytest.approx(row["p_auccc_sd"])


def test_what_was_fitted_is_not_fitted_again(study: SeedStudy, tmp_path: Path) -> None:
    first = seed_study(
        ANSWERS, RECIPES, [STATES], SPLIT, SeedOptions(count=2, seed=2), folder=tmp_path
    )
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("router.json")}
    assert len(stamps) == 4
    more = seed_study(
        ANSWERS, RECIPES, [STATES], SPLIT, SeedOptions(count=4, seed=2), folder=tmp_path
    )
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps
    assert more.to_dict() == study.to_dict()
    assert first.spreads[0].values["auc_mean"] == study.spreads[0].values["auc_mean"][:2]


def test_a_router_that_cannot_be_fitted_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    recipes = {"trees": recipe_from_dict({**FEATURES, "predictor": "xgboost"}), **RECIPES}
    study = seed_study(ANSWERS, recipes, [STATES], SPLIT, SeedOptions(count=2))
    assert [spread.name for spread in study.spreads] == ["network", "neighbours"]
    assert "prefill-router-lab[xgboost]" in study.failures[0].why


def test_the_page_says_what_moves(study: SeedStudy, tmp_path: Path) -> None:
    write_report_files(study.report(title="Seeds", facts={}), tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert "The seed changes the mean AUC most for network" in page
    assert "for every seed: neighbours" in page
    assert f"± {study.spreads[0].sd('auc_mean'):.4f}" in page
    assert "± 0.0000" not in page
    none = SeedStudy((), (), 10, 0, 2)
    assert summary(none) == ["No router could be fitted."]
    write_report_files(none.report(title="Seeds", facts={}), tmp_path / "none")


@pytest.mark.parametrize("given", [{"count": 1}, {"seed": -1}])
def test_too_few_seeds_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="it must be"):
        SeedOptions(**given)


def test_what_is_not_defined_is_said_and_shown_as_a_dash(study: SeedStudy) -> None:
    spreads = tuple(
        dataclasses.replace(
            spread, values={**spread.values, "p_auccc": (np.nan,) * len(spread.seeds)}
        )
        for spread in study.spreads
    )
    lost = dataclasses.replace(study, spreads=spreads)
    assert "P-AUCCC" in summary(lost)[-1]
    shown = lost.report(title="Seeds", facts={})
    assert "nan" not in render(shown, {"seeds": ""})
