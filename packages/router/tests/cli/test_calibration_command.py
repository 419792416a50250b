import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from packages.router.tests.commands import Job, check_malformed, check_refused, run, run_ok
from prefill_router.activations import ActivationStore
from prefill_router.calibration import fit_calibrator
from prefill_router.data import read_dataset, save_split, split
from prefill_router.router import Router

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def router(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fitted on a split with a calibration part."""
    folder = tmp_path_factory.mktemp("calibrated")
    shares = {"train": 0.6, "calibration": 0.25, "test": 0.15}
    save_split(split(read_dataset(job.answers), fractions=shares), folder / "split.json")
    options = ("--store", job.states, "--split", folder / "split.json", "--dim", 8)
    run_ok("fit", "--no-verdict", job.answers, *options, "--out", folder / "router")
    return folder / "router"


def command(router: Path, job: Job, to: Path, *more: object) -> tuple[object, ...]:
    options = ("--data", job.answers, "--store", job.states, "--out", to)
    return (
        "calibration",
        router,
        *options,
        *([] if "--resamples" in more else ["--resamples", 20]),
        *more,
    )


def test_figure_and_tables(router: Path, job: Job, tmp_path: Path) -> None:
    result = run(*command(router, job, tmp_path / "out"))
    assert result.code == 0, result.err
    names = {path.name for path in (tmp_path / "out").iterdir()}
    figure = {f"reliability.{end}" for end in ("png", "svg", "csv")}
    assert names == figure | {"calibration.json", "targets.csv", "calibrators.csv"}
    for text in (
        "ECE",
        "all targets",
        "mean of targets",
        "Platt scaling",
        "z-score",
        "further off than chance",
    ):
        assert text in result.out
    assert "no calibration part" not in result.err
    targets = pl.read_csv(tmp_path / "out" / "targets.csv")
    assert targets["target"].to_list()[-2:] == ["all targets", "mean of targets"]
    parts = targets["reliability"] - targets["resolution"] + targets["uncertainty"]
    assert (parts + targets["within"]).to_list() == pytest.approx(targets["brier"].to_list())
    calibrators = pl.read_csv(tmp_path / "out" / "calibrators.csv")
    assert calibrators["calibrator"].to_list() == [
        "none",
        "platt",
        "isotonic",
        "percentile",
        "z_score",
    ]
    assert calibrators["brier_mean_gain"].to_list()[0] == 0


def test_json_is_what_the_folder_holds(router: Path, job: Job, tmp_path: Path) -> None:
    output = json.loads(run_ok(*command(router, job, tmp_path, "--json")))
    assert output == json.loads((tmp_path / "calibration.json").read_text(encoding="utf-8"))
    assert set(output["calibration"]["all targets"]) == set(output["meanings"])
    assert len(output["calibrators"]) == 5
    # the test part, as `evaluate` sees it
    options = ("--data", job.answers, "--store", job.states, "--resamples", 0)
    evaluation = run_ok("evaluate", router, *options, "--out", tmp_path / "report", "--json")
    brier = json.loads(evaluation)["brier_mean"]["value"]
    assert output["calibration"]["mean of targets"]["brier"]["value"] == pytest.approx(brier)


def test_split_without_a_calibration_part_says_how_to_get_one(job: Job, tmp_path: Path) -> None:
    (tmp_path / "calibrators.csv").write_text("of an earlier run\n")
    result = run(*command(job.router, job, tmp_path, "--resamples", 0))
    assert result.code == 0, result.err
    assert "mean of targets" in result.out
    assert "Platt" not in result.out
    assert "prefill-router split DIR --calibration --out split.json" in result.err
    assert not (tmp_path / "calibrators.csv").exists()
    assert json.loads((tmp_path / "calibration.json").read_text())["calibrators"] == []


def test_bad_input_is_told(router: Path, job: Job, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    check_refused("is a file; --out takes a folder", *command(router, job, file))
    check_malformed("--bins is 0", *command(router, job, tmp_path / "out", "--bins", 0))
    check_malformed("--resamples is -1", *command(router, job, tmp_path / "out", "--resamples", -1))
    check_refused("isn't a router's folder", *command(tmp_path / "none", job, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_dataset_must_be_the_one_that_was_split(router: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    rows = [{"prompt": f"{i}?", "target": t, "correct": i % 2} for i in range(9) for t in "ab"]
    pl.DataFrame(rows).write_csv(tmp_path / "rows.csv")
    run_ok("import", "long", tmp_path / "rows.csv", "--out", other)
    options = ("calibration", router, "--data", other, "--out", tmp_path / "out")
    check_refused("lacks the router's targets", *options)


def test_calibrator_that_the_router_has_is_left_out_where_others_are_tried(
    router: Path, job: Job, tmp_path: Path
) -> None:
    bare = Router.load(router)
    data = read_dataset(job.answers).select(bare.split["calibration"])
    predicted = bare.predict(data, stores=[ActivationStore.open(job.states)]).correctness
    correct = data.select(targets=bare.pool.names).correct
    fit = fit_calibrator("platt", predicted, correct, bare.pool.names)
    replace(bare, calibrator=fit.calibrator).save(tmp_path / "router")
    with_it, without = (
        json.loads(run_ok(*command(place, job, tmp_path / "out", "--resamples", 0, "--json")))
        for place in (tmp_path / "router", router)
    )
    assert with_it["calibrators"] == without["calibrators"]
    brier = with_it["calibration"]["mean of targets"]["brier"]["value"]
    assert brier == pytest.approx(without["calibrators"][1]["values"]["brier_mean"]["value"])
    assert brier != without["calibration"]["mean of targets"]["brier"]["value"]
