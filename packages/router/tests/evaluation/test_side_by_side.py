"""Several systems in one figure."""

import dataclasses
from pathlib import Path

import polars as pl
import pytest

from packages.router.tests.evaluation.trials import random_system
from prefill_router.errors import DataError
from prefill_router.evaluation import Evaluation, evaluate
from prefill_router.reporting.evaluation_charts import draw_side_by_side, write_side_by_side


def swap_targets(system: Evaluation) -> Evaluation:
    """The same targets under another router, with the targets' probabilities in reverse order."""
    predictions, data = random_system(queries=50)
    other = dataclasses.replace(predictions, correctness=predictions.correctness[:, ::-1].copy())
    turned = evaluate(other, data, resamples=20)
    assert turned.labels == system.labels
    return turned


@pytest.fixture(scope="module")
def systems() -> dict[str, Evaluation]:
    first = evaluate(*random_system(queries=50), resamples=20)
    return {"prefill": first, "sentence": swap_targets(first)}


@pytest.mark.slow
def test_the_figure_and_its_data(systems: dict[str, Evaluation], tmp_path: Path) -> None:
    paths = write_side_by_side(systems, tmp_path / "both", title="Both")
    assert [path.suffix for path in paths] == [".png", ".svg", ".csv"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    picture = paths[1].read_text()
    assert all(word in picture for word in ("Both", "prefill", "sentence", "oracle accuracy", "t3"))
    rows = pl.read_csv(paths[2])
    singles = rows.filter(pl.col("series").is_in(["target", "frontier target"]))
    assert singles["target"].sort().to_list() == ["t0", "t1", "t2", "t3"]
    for name, system in systems.items():
        curve = rows.filter((pl.col("system") == name) & (pl.col("series") == "router"))
        assert curve["y"].to_list() == pytest.approx(100 * system.curve.accuracy)
        assert curve["x"].to_list() == pytest.approx(1000 * system.curve.mean_cost)
    assert rows.filter(pl.col("series") == "oracle").height == 1


def test_what_can_not_be_drawn_together(systems: dict[str, Evaluation]) -> None:
    fewer = evaluate(*random_system(queries=49), resamples=0)
    with pytest.raises(DataError, match="different queries or targets"):
        draw_side_by_side({"a": systems["prefill"], "b": fewer}, title="")
    with pytest.raises(DataError, match="0 systems"):
        draw_side_by_side({}, title="")
    with pytest.raises(DataError, match="5 systems"):
        draw_side_by_side(dict.fromkeys("abcde", fewer), title="")
