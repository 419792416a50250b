import json
import re
from pathlib import Path

import pytest
import yaml

from packages.lab.tests.search.searching import ANSWERS, KNOWS, SMALL
from packages.router.tests.commands import check_malformed, check_refused, run_ok
from packages.router.tests.fakes.planted_signal import SITES
from prefill_router.data import write_dataset
from prefill_router.encoders.run import encode_dataset
from prefill_router.router import Router
from prefill_router.testing import FakeEncoder

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    write_dataset(ANSWERS, folder / "answers")
    encode_dataset(ANSWERS, FakeEncoder(), folder / "states", sites=SITES, rounding="float32")
    (folder / "space.yaml").write_text(yaml.safe_dump(SMALL, sort_keys=False))
    return folder


def command(place: Path, to: Path, *more: object) -> tuple[object, ...]:
    return (
        *("search", place / "space.yaml", "--data", place / "answers"),
        *("--store", place / "states", "--out", to, "--folds", 3, "--resamples", 50, *more),
    )


@pytest.fixture(scope="module")
def search_folder(place: Path) -> Path:
    to = place / "found"
    run_ok(*command(place, to, "--trials", 4, "--sealed"))
    assert not (to / "opened.json").exists()
    output = run_ok(*command(place, to, "--trials", 6))
    assert "The test part was opened once." in " ".join(output.split())
    return to


def test_what_there_is_to_try() -> None:
    output = json.loads(run_ok("search", "default", "--list", "--json"))
    assert output["configurations"] > 1300
    assert len(output["predictors"]) > 10


def test_everything_is_in_the_folder(search_folder: Path) -> None:
    numbers = json.loads((search_folder / "search.json").read_text())
    assert numbers["winner"]["features"] == KNOWS
    assert numbers["possible"] == 36
    assert sum(numbers["states"].values()) == 6
    test = numbers["test"]["auc_mean"]
    assert test["lower"] <= test["value"] <= test["upper"]
    rows = (search_folder / "ranking.csv").read_text().splitlines()
    assert len(rows) == 1 + numbers["tried"]
    for name in ("progress", "pairs"):
        for suffix in ("png", "svg", "csv"):
            assert (search_folder / "figures" / f"{name}.{suffix}").stat().st_size > 0
    assert len(Router.load(search_folder / "router").pool) == 3


def test_the_page_opens_offline(search_folder: Path) -> None:
    page = (search_folder / "index.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!#)', page)
    assert "of difficulty" not in page
    assert "The test part was opened once." in page


def test_the_winner_is_a_recipe_for_fit(search_folder: Path, place: Path, tmp_path: Path) -> None:
    output = json.loads(
        run_ok(
            *("fit", place / "answers", "--store", place / "states", "--json"),
            *("--recipe", search_folder / "winner.yaml", "--split", search_folder / "split.json"),
            *("--out", tmp_path / "router"),
        )
    )
    numbers = json.loads((search_folder / "search.json").read_text())
    assert output["auc_mean"]["value"] == numbers["test"]["auc_mean"]["value"]


def test_the_same_again_opens_nothing_new(search_folder: Path, place: Path) -> None:
    before = (search_folder / "opened.json").read_bytes()
    output = json.loads(run_ok(*command(place, search_folder, "--trials", 6, "--json")))
    assert (search_folder / "opened.json").read_bytes() == before
    assert len(output["openings"]) == 1


def test_another_winner_is_not_judged(search_folder: Path, place: Path, tmp_path: Path) -> None:
    opened = json.loads((search_folder / "opened.json").read_text())
    opened["openings"][0]["configuration"] = "0123456789abcdef"
    to = tmp_path / "found"
    run_ok(*command(place, to, "--trials", 3, "--sealed"))
    (to / "opened.json").write_text(json.dumps(opened))
    check_refused("opened on .* for another configuration", *command(place, to, "--trials", 3))
    assert json.loads((to / "search.json").read_text())["test"] is None
    output = json.loads(run_ok(*command(place, to, "--trials", 3, "--open-again", "--json")))
    assert [opening["again"] for opening in output["openings"]] == [False, True]
    assert "for 2 configurations" in (to / "index.html").read_text()


def test_another_search_or_anything_else_is_not_overwritten(
    search_folder: Path, place: Path, tmp_path: Path
) -> None:
    check_refused(
        "holds another search .other: config",
        *command(place, search_folder, "--seed", 0, "--margin", 0.5),
    )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    check_refused("exists and isn't the folder of a search", *command(place, tmp_path / "mine"))
    check_malformed("needs --data and --out", "search", place / "space.yaml")
    check_refused("no such file", "search", place / "none.yaml", "--list")
    check_malformed("objective is 'luck'", *command(place, tmp_path / "x", "--objective", "luck"))
