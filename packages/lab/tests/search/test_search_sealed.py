import dataclasses
import json
from pathlib import Path

import pytest

from packages.lab.tests.search.searching import (
    ANSWERS,
    CONFIG,
    SPLIT,
    STATES,
    run_search,
    seal_test,
    small_space,
)
from prefill_router.errors import ConfigError, CorruptError, DataError
from prefill_router.fitting import Recipe, TrainOnly, recipe_from_dict
from prefill_router_lab.search import choose, conclude, seal
from prefill_router_lab.search.holdout_guard import MARK

pytestmark = pytest.mark.slow

RECIPE = Recipe()
OTHER = recipe_from_dict({"predictor": "constant"})


def test_what_searches_has_no_test_rows(tmp_path: Path) -> None:
    train, _ = seal_test(tmp_path)
    assert set(train.dataset.query_ids) == set(SPLIT["train"])
    assert not (tmp_path / MARK).exists()


def test_test_rows_among_the_train_rows_are_refused() -> None:
    with pytest.raises(DataError, match=r"36 of 240 rows to search on belong to the test part"):
        TrainOnly(ANSWERS, frozenset(SPLIT["test"]))


def test_opening_leaves_a_mark(tmp_path: Path) -> None:
    _, test = seal_test(tmp_path)
    assert test.openings == []
    assert test.open(RECIPE).fingerprint == ANSWERS.fingerprint
    [opening] = json.loads((tmp_path / MARK).read_text())["openings"]
    assert opening["recipe"] == RECIPE.to_dict()
    assert not opening["again"]
    assert test.openings == [opening]


def test_the_same_configuration_may_be_judged_again(tmp_path: Path) -> None:
    _, test = seal_test(tmp_path)
    test.open(RECIPE)
    test.open(RECIPE)
    assert len(test.openings) == 1


def test_another_configuration_is_refused_unless_asked_for(tmp_path: Path) -> None:
    seal_test(tmp_path)[1].open(RECIPE)
    _, test = seal_test(tmp_path)  # another process
    with pytest.raises(ConfigError, match=r"opened on .* for another configuration .*--open-again"):
        test.open(OTHER)
    assert len(test.openings) == 1
    test.open(OTHER, again=True)
    assert [opening["again"] for opening in test.openings] == [False, True]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"openings": 3}', '{"openings": [{}]}'])
def test_a_spoilt_mark_opens_nothing(tmp_path: Path, text: str) -> None:
    _, test = seal_test(tmp_path)
    (tmp_path / MARK).write_text(text)
    with pytest.raises(CorruptError, match="nothing says whether the test part was opened"):
        test.open(RECIPE)


def test_neither_side_shows_what_is_sealed(tmp_path: Path) -> None:
    train, test = seal_test(tmp_path)
    assert "of difficulty" not in repr(test)
    assert SPLIT["test"][0] not in repr(test)
    assert not [name for name in dir(test) if not name.startswith("_") and name not in PUBLIC]
    assert SPLIT["test"][0] not in repr(train.dataset.query_ids)


PUBLIC = {"mark", "open", "openings", "split_for"}


def test_the_winners_split_keeps_the_test_part(tmp_path: Path) -> None:
    _, test = seal_test(tmp_path)
    assert test.split_for(RECIPE, seed=0).parts == SPLIT.parts
    calibrated = test.split_for(dataclasses.replace(RECIPE, calibration="platt"), seed=0)
    assert calibrated["test"] == SPLIT["test"]
    ids = {*calibrated["train"], *calibrated["calibration"]}
    assert ids == set(SPLIT["train"])
    assert len(calibrated["calibration"]) == 24  # a tenth of all


def test_labels_of_the_test_part_change_nothing_that_is_chosen(tmp_path: Path) -> None:
    correct = ANSWERS.correct.copy()
    correct[ANSWERS.rows(SPLIT["test"])] = 0.0
    other = dataclasses.replace(ANSWERS, correct=correct)
    config = dataclasses.replace(CONFIG, resamples=0)
    verdicts = [choose(run_search(dataset=d), small_space(), config) for d in (ANSWERS, other)]
    tables = [[row.to_dict() for row in verdict.ranking] for verdict in verdicts]
    assert tables[0] == tables[1]
    results = []
    for name, dataset, verdict in zip("ab", (ANSWERS, other), verdicts, strict=True):
        _, test = seal(dataset, SPLIT, tmp_path / name)
        done, _ = conclude(verdict, test, [STATES])
        assert done.evaluation is not None
        results.append(done.evaluation.headline["brier_mean"].value)
    assert results[0] != results[1]  # it is these labels that it is judged by


def test_one_opening_a_search(tmp_path: Path) -> None:
    verdict = choose(run_search(), small_space(), dataclasses.replace(CONFIG, resamples=20))
    _, test = seal_test(tmp_path)
    conclusion, router = conclude(verdict, test, [STATES])
    assert conclusion.ranking == verdict.ranking
    assert len(conclusion.openings) == 1
    assert router.split["test"] == SPLIT["test"]
    other = dataclasses.replace(verdict, ranking=verdict.ranking[1:])
    with pytest.raises(ConfigError, match="for another configuration"):
        conclude(other, test, [STATES])
    again, _ = conclude(other, test, [STATES], again=True)
    assert [opening["again"] for opening in again.openings] == [False, True]
