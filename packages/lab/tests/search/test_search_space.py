from pathlib import Path
from typing import Any

import pytest

from packages.lab.tests.search.searching import SMALL, small_space
from prefill_router.errors import ConfigError, FormatError
from prefill_router_lab.search import DEFAULT, Space, read_space
from prefill_router_lab.search.space import key_of, space_from_dict

pytestmark = pytest.mark.slow


def keys(space: Space) -> list[str]:
    return [
        key_of(space.recipe(candidate, kind))
        for candidate in space.all_candidates()
        for kind in space.kinds(candidate)
    ]


def test_the_packaged_space_has_more_configurations_than_the_paper() -> None:
    space = read_space(DEFAULT)
    assert space.size > 1300
    assert sum(1 for _ in space.all_candidates()) == space.candidates
    assert len(set(space.all_candidates())) == space.candidates
    kinds = {predictor.fixed[0]["kind"] for predictor in space.predictors.values()}
    assert {"shared_trunk", "logistic", "xgboost", "graph", "irt", "knn_score"} <= kinds
    assert len(space.calibrations) == 5


def test_every_configuration_counts_once() -> None:
    space = small_space()
    found = keys(space)
    assert len(found) == len(set(found)) == space.size == 2 * 2 * (2 + 1) * 3
    assert space.candidates == 2 * 2 * (2 + 1) * 2


def test_options_arrive_in_the_recipe() -> None:
    space = small_space()
    [candidate] = [
        c
        for c in space.all_candidates()
        if (c.features, c.predictor, c.places, c.calibrated)
        == ("knows", "clusters", ((1,), (1,)), True)
    ]
    recipe = space.recipe(candidate, "platt").to_dict()
    assert recipe["features"][0]["dim"] == 8
    assert recipe["predictor"]["clusters"] == 4
    assert recipe["predictor"]["restarts"] == 1
    assert recipe["calibration"] == "platt"


def test_without_calibrators_no_rows_are_held_out() -> None:
    space = small_space(calibrations=["none"])
    assert {candidate.calibrated for candidate in space.all_candidates()} == {False}
    assert small_space(calibrations=["platt"]).held_out == (True,)


def test_plain_values_make_the_same_space() -> None:
    space = small_space()
    assert space_from_dict(space.to_dict()).to_dict() == space.to_dict()
    assert keys(space_from_dict(space.to_dict())) == keys(space)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"features": {}}, "needs features"),
        ({"predictors": {"a": {"kind": "none such"}}}, "there is no predictor"),
        ({"predictors": {"a": {"try": {"k": [1]}}}}, "needs a kind"),
        ({"predictors": {"a": {"kind": "clusters", "try": {"clusters": []}}}}, "at least one"),
        ({"predictors": {"a": {"kind": "clusters", "try": {"clusters": 3}}}}, "at least one"),
        ({"predictors": {"a": {"kind": "clusters", "try": {"clusters": [3, 3]}}}}, "repeats"),
        ({"predictors": {"a": {"kind": "clusters", "try": {"clusters": [3, 0]}}}}, "at least 1"),
        ({"predictors": {"a": {"kind": "clusters", "try": {"colour": [3]}}}}, "no option"),
        ({"predictors": {"a": "constant", "b": "constant"}}, "'b' repeats a configuration of 'a'"),
        ({"predictors": {"a": {"kind": "clusters", "try": [3]}}}, "try is a mapping"),
        ({"features": {"a": []}}, "is empty"),
        ({"calibrations": []}, "at least one"),
        ({"calibrations": ["platt", "platt"]}, "none twice"),
        ({"calibrations": ["prayer"]}, "prayer"),
        ({"colours": ["red"]}, "a space is a mapping"),
    ],
)
def test_nonsense_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        small_space(**change)


def test_a_file_that_is_no_space_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file"):
        read_space(str(tmp_path / "none.yaml"))
    (tmp_path / "bad.yaml").write_text("features: [")
    with pytest.raises(FormatError, match=r"bad.yaml: line 1: not YAML"):
        read_space(str(tmp_path / "bad.yaml"))
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(FormatError, match="a space is a mapping"):
        read_space(str(tmp_path / "empty.yaml"))
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="not YAML"):
        read_space(str(tmp_path / "bytes.yaml"))


def test_a_folder_of_the_packaged_name_doesnt_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_space(DEFAULT).size > 1300
    assert SMALL["calibrations"][0] == "none"
