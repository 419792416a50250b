import csv
import json
from pathlib import Path

import numpy as np
import pytest

from prefill_router import files
from prefill_router.errors import CorruptError
from prefill_router.predictors import TrainingCurves
from prefill_router.predictors.curve_figures import write_curves

CURVES = TrainingCurves(
    train=np.array([[0.7, 0.6, 0.5], [0.71, 0.6, np.nan]]),
    validation=np.array([[0.69, 0.65, 0.66], [0.68, 0.7, np.nan]]),
    best_epoch=np.array([1, 0]),
    is_kept=np.array([True, False]),
)


@pytest.mark.slow
def test_table_holds_every_epoch_of_every_seed(tmp_path: Path) -> None:
    table, png, svg = write_curves(CURVES, tmp_path)
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["seed"], r["epoch"]) for r in rows] == [
        ("0", "0"),
        ("0", "1"),
        ("0", "2"),
        ("1", "0"),
        ("1", "1"),
    ]
    assert [float(r["validation_loss"]) for r in rows] == [0.69, 0.65, 0.66, 0.68, 0.7]
    assert [r["best"] for r in rows] == ["0", "1", "0", "1", "0"]
    assert [r["kept"] for r in rows] == ["1", "1", "1", "0", "0"]
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()


def test_json_has_the_same_losses_and_no_nan() -> None:
    value = json.loads(json.dumps(CURVES.to_dict(), allow_nan=False))
    assert value["seeds"][1] == {
        "seed": 1,
        "kept": False,
        "best_epoch": 0,
        "train_loss": [0.71, 0.6],
        "validation_loss": [0.68, 0.7],
    }
    assert CURVES.best.tolist() == [0.65, 0.68]


def test_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(path: Path, text: str) -> None:
        del path, text
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "write_text", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_curves(CURVES, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_curves_survive_json_and_anything_else_is_refused() -> None:
    again = TrainingCurves.from_dict(json.loads(json.dumps(CURVES.to_dict())))
    np.testing.assert_array_equal(again.validation, CURVES.validation)
    np.testing.assert_array_equal(again.train, CURVES.train)
    assert again.best_epoch.tolist() == [1, 0]
    assert again.is_kept.tolist() == [True, False]
    for broken in ({}, {"seeds": [{}]}, {"seeds": 3}):
        with pytest.raises(CorruptError, match="training curves"):
            TrainingCurves.from_dict(broken)
