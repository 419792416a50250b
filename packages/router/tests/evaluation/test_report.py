import csv
import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from packages.router.tests.coarse_figures import coarse_figures
from packages.router.tests.evaluation.test_evaluate import DEGENERATE
from packages.router.tests.evaluation.trials import random_system, system
from prefill_router.data import RoutingDataset
from prefill_router.errors import DataError
from prefill_router.evaluation import Estimate, Evaluation, evaluate
from prefill_router.evaluation.scores import HEADLINE, TARGET, interval, worded
from prefill_router.policy import Predictions
from prefill_router.reporting import is_report, report_files, write_report
from prefill_router.reporting.evaluation_charts import draw, drawing
from prefill_router.reporting.evaluation_report import verdict
from prefill_router.reporting.figures import place_labels, svg
from prefill_router.targets import Pool, Target

pytestmark = pytest.mark.slow

FILES = {
    "metrics.json",
    "curve.csv",
    "targets.csv",
    "operating_points.csv",
    "index.html",
    *(
        f"figures/{name}.{kind}"
        for name in ("accuracy_cost", "accuracy_cost_normalised")
        for kind in ("png", "svg", "csv")
    ),
}


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    return evaluate(*random_system(queries=80, missing=0.05), resamples=60)


@pytest.fixture(scope="module")
def folder(evaluation: Evaluation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reports") / "report"
    write_report(evaluation, path, title="A <b>title</b>", facts={"Router": "r & s <script>"})
    return path


def test_files(folder: Path) -> None:
    paths = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert paths == FILES
    assert is_report(folder)
    assert (folder / "figures/accuracy_cost.png").read_bytes().startswith(b"\x89PNG")


def test_metrics_json(folder: Path, evaluation: Evaluation) -> None:
    value = json.loads((folder / "metrics.json").read_text())
    for name in HEADLINE:
        assert {"value", "lower", "upper"} <= set(value[name])
    for name in ("auc_mean", "brier_mean", "argmax_accuracy", "max_lam_accuracy", "p_auccc",
                 "best_single_accuracy", "oracle_accuracy", "headroom_captured", "cost_savings",
                 "mdp_auccc", "oracle_distance", "oracle_distance_reduction"):  # fmt: skip
        assert value[name]["value"] == evaluation.headline[name].value
    assert set(value["per_target"]) == set(evaluation.targets)
    assert set(value["per_target"]["t0"]) == set(TARGET)
    assert value["bootstrap"]["resamples"] == 60
    assert value["facts"] == {"Router": "r & s <script>"}
    assert value["definitions"]["points"]
    assert value["operating_points"]["count"] == len(evaluation.curve)


def test_tables_hold_the_numbers(folder: Path, evaluation: Evaluation) -> None:
    with (folder / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(evaluation.curve)
    assert [float(row["accuracy"]) for row in rows] == evaluation.curve.accuracy.tolist()
    assert rows[0]["lam_from"] == "0.0"
    assert rows[-1]["lam_to"] == "1.0"
    with (folder / "targets.csv").open() as file:
        targets = list(csv.DictReader(file))
    assert [row["target"] for row in targets] == list(evaluation.targets)
    assert float(targets[1]["auc_lower"]) == evaluation.per_target["t1"]["auc"].lower
    with (folder / "operating_points.csv").open() as file:
        steps = list(csv.DictReader(file))
    assert [row["step"] and float(row["step"]) for row in steps] == ["", 1e-2, 1e-3, 1e-4, 1e-5]


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open = self.open[:-1] if self.open[-1:] == [tag] else self.open

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_whole_and_needs_nothing_from_outside(folder: Path) -> None:
    text = (folder / "index.html").read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    assert page.open == []
    assert all(address.startswith("#") for address in page.addresses)
    assert "script" not in page.tags
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text
    assert text.count("<svg") == 2
    assert "A &lt;b&gt;title&lt;/b&gt;" in text
    assert "r &amp; s &lt;script&gt;" in text
    assert "nan" not in text.lower().split("<svg")[0]
    for entry in HEADLINE.values():
        assert entry.label in text


def test_pictures_are_svg_with_each_target_named(folder: Path, evaluation: Evaluation) -> None:
    for name in ("accuracy_cost", "accuracy_cost_normalised"):
        text = (folder / f"figures/{name}.svg").read_text()
        ElementTree.fromstring(text)
        for target in evaluation.targets:
            assert f">{target}<" in text


def test_same_figure_same_bytes(evaluation: Evaluation) -> None:
    first, again = (svg(draw(drawing(evaluation, "raw"))) for _ in range(2))
    assert first == again


def test_data_beside_the_figure_is_what_it_shows(folder: Path, evaluation: Evaluation) -> None:
    with (folder / "figures/accuracy_cost_normalised.csv").open() as file:
        rows = list(csv.DictReader(file))
    router = [row for row in rows if row["series"] == "router"]
    assert [float(row["x"]) for row in router] == evaluation.curve.normalised_cost.tolist()
    targets = {row["target"] for row in rows if "target" in row["series"]}
    assert targets == set(evaluation.targets)
    frontier = {row["target"] for row in rows if row["series"] == "frontier target"}
    assert frontier == set(evaluation.frontier)
    assert {"band", "max-lam", "oracle"} <= {row["series"] for row in rows}


def test_a_report_is_replaced_and_anything_else_is_not(
    folder: Path, evaluation: Evaluation, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    target.mkdir()
    with coarse_figures():
        write_report(evaluation, target)
        (target / "extra").write_text("of an earlier report")
        write_report(evaluation, target, title="Second")
    assert not (target / "extra").exists()
    assert json.loads((target / "metrics.json").read_text())["title"] == "Second"
    for other in (tmp_path / "thesis", tmp_path / "fake"):
        other.mkdir()
        (other / "metrics.json").write_text('{"mine": 1}' if other.name == "fake" else "text")
        with pytest.raises(DataError, match="isn't a report"):
            write_report(evaluation, other)
        assert [p.name for p in other.iterdir()] == ["metrics.json"]
    with pytest.raises(DataError, match="isn't a report"):
        write_report(evaluation, folder / "metrics.json")


def test_a_failure_leaves_the_earlier_report(
    folder: Path, evaluation: Evaluation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder, tmp_path / "report")

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(report_files, "write_csv", fail)
    with coarse_figures(), pytest.raises(KeyboardInterrupt):
        write_report(evaluation, tmp_path / "report", title="Second")
    for name in ("metrics.json", "index.html"):
        assert (tmp_path / "report" / name).read_bytes() == (folder / name).read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["report"]


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_pools_are_reported(name: str, tmp_path: Path) -> None:
    *tables, _ = DEGENERATE[name]
    evaluation = evaluate(*system(*tables), resamples=10)  # type: ignore[arg-type]
    with coarse_figures():
        write_report(evaluation, tmp_path / "report")
    assert "Not defined here: " in (tmp_path / "report/index.html").read_text()


def test_strange_names_of_targets(tmp_path: Path) -> None:
    predictions, data = random_system(queries=20, targets=2)
    names = ("$\\frac{<&>", "模型 🙂 " + "long" * 20)
    pool = Pool(tuple(Target(name=name) for name in names))
    renamed = Predictions(**{**vars(predictions), "targets": names})
    data = RoutingDataset.of(data.queries, pool, data.correct, recorded_cost=data.observed_cost)
    write_report(evaluate(renamed, data, resamples=5), tmp_path / "report")
    text = (tmp_path / "report/index.html").read_text(encoding="utf-8")
    assert "$\\frac{&lt;&amp;&gt;" in text
    assert names[1] in text


def test_verdict_says_why_there_are_no_costs() -> None:
    *tables, _ = DEGENERATE["unknown cost"]
    assert "no cost is known" in verdict(evaluate(*system(*tables), resamples=0))  # type: ignore[arg-type]


def test_labels_cover_neither_each_other_nor_points() -> None:
    random = np.random.default_rng(0)
    figure = Figure(figsize=(8, 5))
    axes = figure.add_subplot()
    at = [(float(x), float(y)) for x, y in random.random((14, 2))]
    axes.plot(*zip(*at, strict=True), "o")
    place_labels(axes, at, [f"a target of name {i}" for i in range(14)])
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    boxes = [text.get_window_extent(renderer) for text in axes.texts]
    points = axes.transData.transform(at)
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[i + 1 :])
        assert box.count_contains(points) == 0


def test_intervals_name_their_unit_once() -> None:
    estimate = Estimate(0.5, 0.25, 0.75)
    assert interval(estimate, "share") == "25.0 to 75.0 %"
    assert interval(estimate, "points") == "+25.0 to +75.0 pp"
    assert interval(estimate, "usd") == "$250.00 to 750.00"
    assert interval(Estimate(0.5, float("nan"), float("nan")), "share") == ""


def test_worded() -> None:
    assert worded(0.1234, "share") == "12.3 %"
    assert worded(0.01, "points") == "+1.0 pp"
    assert worded(-0.5, "number") == "-0.500"
    assert worded(0.0005, "usd") == "$0.500"
    assert worded(float("nan"), "share") == "\u2013"
