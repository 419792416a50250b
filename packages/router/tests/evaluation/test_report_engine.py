"""The one engine of reports: what is described once is on the page, in the files, in a terminal."""

import csv
import io
import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from packages.router.tests.evaluation.trials import random_system
from prefill_router.errors import ConfigError, DataError
from prefill_router.evaluation import Evaluation, evaluate
from prefill_router.reporting import write_report
from prefill_router.reporting.evaluation_tables import REPORT_TABLES, report_table
from prefill_router.reporting.report import (
    Cell,
    Code,
    Folded,
    Lines,
    Note,
    Report,
    ReportFigure,
    Section,
    Table,
)
from prefill_router.reporting.report_files import (
    ReportKind,
    check_place,
    mark,
    page,
    write_report_files,
)

pytestmark = pytest.mark.slow

TABLE = Table(
    ["who", "number"],
    [["<a>", Cell("1", note="0 to 2", compared="better")], ["b", "2"]],
    right_from=1,
)


def describe_report() -> Report:
    figure = ReportFigure("curve", Figure(), [{"x": 1, "y": float("nan")}], "What <is> seen")
    return Report(
        name="numbers",
        title="A & B",
        summary=["Said <first>."],
        facts={"data": "<d>"},
        parts=[
            Section("Part <1>", [Note("quiet"), TABLE, Folded("more", [Code("a: <1>")])]),
            figure,
        ],
        numbers={"n": 1},
        tables={"deep/rows": [{"a": 1, "b": None}, {"a": float("nan"), "b": "x"}]},
        short=TABLE,
    )


def test_one_description_is_page_json_csv_and_pictures(tmp_path: Path) -> None:
    write_report_files(describe_report(), tmp_path)
    text = (tmp_path / "index.html").read_text()
    for words in (
        "A &amp; B",
        "Said &lt;first&gt;.",
        "Part &lt;1&gt;",
        "a: &lt;1&gt;",
        "&lt;d&gt;",
    ):
        assert words in text
    assert '<th scope="row">&lt;a&gt;</th><td><b>1</b><small>0 to 2</small></td>' in text
    assert "What &lt;is&gt; seen" in text
    assert "<svg" in text
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert numbers == {"title": "A & B", "known": {"data": "<d>"}, "n": 1}
    assert (tmp_path / "deep/rows.csv").read_text() == "a,b\n1.0,\n,x\n"
    assert (tmp_path / "figures/curve.csv").read_text() == "x,y\n1,\n"
    assert (tmp_path / "figures/curve.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_table_is_shown_in_a_terminal() -> None:
    stream = io.StringIO()
    Console(file=stream, width=40).print(TABLE.for_terminal())
    assert [line.split() for line in stream.getvalue().splitlines()] == [
        ["who", "number"],
        ["<a>", "1"],
        ["b", "2"],
    ]
    assert stream.getvalue().splitlines()[1].index("1") > len("who  ")


def test_a_table_without_rows_says_so_and_lists_are_escaped() -> None:
    text = page("T", [Table(["x"], [], otherwise="There is no <other>."), Lines(["a < b"])])
    assert "There is no &lt;other&gt;." in text
    assert "<li>a &lt; b</li>" in text
    assert "<table>" not in text


def test_a_folder_of_another_kind_is_not_replaced(tmp_path: Path) -> None:
    kind = ReportKind("a sample", "numbers.json", "sample 1")
    report = describe_report()
    kind.replace(report, tmp_path / "fresh")
    with pytest.raises(DataError, match="exists and isn't a sample"):
        kind.replace(report, tmp_path / "fresh")  # its JSON names no format
    mark(tmp_path / "study", "one", {})
    check_place(tmp_path / "study", "one")
    with pytest.raises(ConfigError, match="is no study 'other'"):
        check_place(tmp_path / "study", "other")


@pytest.fixture
def evaluation() -> Evaluation:
    return evaluate(*random_system(queries=40, targets=3), resamples=5)


def test_a_table_of_the_report_is_one_function(evaluation: Evaluation, tmp_path: Path) -> None:
    before = dict(REPORT_TABLES)

    @report_table(
        "counts",
        "How much there is",
        "Counted.",
        rows=lambda evaluation: [{"n": evaluation.queries}],
    )
    def counts(evaluation: Evaluation) -> Table:
        return Table(["", "queries"], [["all", f"{evaluation.queries:,}"]])

    try:
        write_report(evaluation, tmp_path / "report")
        with pytest.raises(ValueError, match="two tables of the report are called 'counts'"):
            report_table("counts", "Again")(counts)
    finally:
        REPORT_TABLES.clear()
        REPORT_TABLES.update(before)
    text = (tmp_path / "report/index.html").read_text()
    assert "<h2>How much there is</h2>" in text
    assert '<p class="soft">Counted.</p>' in text
    assert '<th scope="row">all</th><td>40</td>' in text
    with (tmp_path / "report/counts.csv").open() as file:
        assert list(csv.DictReader(file)) == [{"n": "40"}]
