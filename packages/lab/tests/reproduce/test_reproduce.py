import dataclasses
import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from packages.lab.tests.reproduce import published_formats as formats
from packages.router.tests.coarse_figures import coarse_figures
from packages.router.tests.commands import check_refused, run_ok
from packages.router.tests.fakes.planted_signal import shuffle_labels
from packages.router.tests.fakes.tiny_encoder import save_tiny_encoder
from packages.router.tests.short_training import short_training
from prefill_router.activations import Site
from prefill_router.comparison import ComparisonPlan, ComparisonResult
from prefill_router.data import WITH_CALIBRATION, RoutingDataset, split
from prefill_router.errors import ConfigError
from prefill_router.evaluation import compare, evaluate
from prefill_router.fitting import Recipe, SoftLabels
from prefill_router.importers import import_dataset
from prefill_router.router import EncoderSources
from prefill_router.statistics import auc_by_target
from prefill_router.testing import FakeEncoder, make_routing_dataset
from prefill_router_lab.reproduce import (
    Bench,
    PoolRun,
    ReproduceMeans,
    ReproduceOptions,
    all_tables,
    check,
    find_pools,
    reproduce,
    to_dict,
    write,
)
from prefill_router_lab.reproduce.cells import PaperTable, format_value
from prefill_router_lab.reproduce.reproduction import PoolContext, make_parts, with_interval
from prefill_router_lab.reproduce.systems import (
    JUDGED,
    SYSTEMS,
    TRUNK,
    TUNED,
    UNIFIED,
    make_recipes,
)

pytestmark = pytest.mark.slow

ANSWERS = make_routing_dataset(queries=200, seed=5)
ENCODER = FakeEncoder()
SITES = tuple(Site(layer, pooling) for layer in range(2, 5) for pooling in ("last", "mean"))
MEANS = ReproduceMeans(
    encoders=("fake",), embedding="fake", sources=EncoderSources(loaded=(ENCODER,))
)
QUICK = ReproduceOptions(seeds=2, resamples=20, dim=4, quick=True)


def run_on(
    dataset: RoutingDataset,
    bench: Bench = "mmlu-pro",
    folder: Path | None = None,
    studies: tuple[str, ...] | None = None,
) -> list[PoolRun]:
    states = ENCODER.encode(dataset.queries, SITES, rounding="float32")
    return reproduce(
        bench, dataset, [states], options=QUICK, means=MEANS, studies=studies, folder=folder
    )


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Tables and pages are made alike of whatever networks have learned."""
    with short_training(), coarse_figures():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("paper")


@pytest.fixture(scope="module")
def runs(folder: Path) -> list[PoolRun]:
    return run_on(ANSWERS, folder=folder / "work")


@pytest.fixture(scope="module")
def tables(runs: list[PoolRun]) -> dict[int, PaperTable]:
    return {table.number: table for table in all_tables(runs)}


@pytest.fixture(scope="module")
def report(runs: list[PoolRun], folder: Path) -> Path:
    write(
        runs,
        folder,
        title="The paper on <made-up> answers",
        introduction=["Said."],
        facts={"data": "&"},
    )
    return folder


def test_every_table_is_there_with_numbers_or_a_reason(tables: dict[int, PaperTable]) -> None:
    assert list(tables) == list(range(1, 31))
    for table in tables.values():
        ours = [cell for row in table.rows for cell in row.cells if cell.ours is not None]
        paper = [cell for row in table.rows for cell in row.cells if cell.paper is not None]
        assert paper, table.label
        assert bool(ours) != bool(table.missing), table.label
        assert all(len(row.cells) == len(table.columns) for row in table.rows)


def test_semantic_baselines_are_calibrated_on_rows_of_their_own(runs: list[PoolRun]) -> None:
    """The prefill router learns from all of the 85 %, and all are judged on the same test part."""
    for name in SYSTEMS:
        judged = runs[0].system(name)
        assert judged is not None
        router = judged.fit.router
        assert (router.calibrator is not None) == (name != TRUNK)
        assert ("calibration" in router.split.parts) == (name != TRUNK)
        assert router.split["test"] == runs[0].split["test"]
    trunk, unified = (runs[0].system(name) for name in (TRUNK, UNIFIED))
    assert trunk is not None
    assert unified is not None
    parts = unified.fit.router.split
    both = {*parts["train"], *parts["calibration"]}
    assert both == set(trunk.fit.router.split["train"])


def test_what_needs_weights_or_a_judge_is_made_where_they_are() -> None:
    plain = make_recipes(["minilm"], "minilm", ReproduceOptions())
    assert TUNED not in plain
    assert JUDGED not in plain
    assert "Cascade (FrugalGPT)" in plain
    assert getattr(plain["Disagreement-weighted"].predictor, "disagreement_weight", 1) == 2
    judge = Path("judge.csv")
    more = make_recipes(
        ["minilm"], "minilm", ReproduceOptions(), text_network="deberta", soft_labels=judge
    )
    assert set(more) - set(plain) == {TUNED, JUDGED}
    assert more[JUDGED].soft_labels == SoftLabels(file=judge)
    [tuned] = more[TUNED].features
    assert getattr(tuned, "network", "") == "deberta"


def test_what_the_data_lack_is_said(tables: dict[int, PaperTable]) -> None:
    assert "no frontier pool" in tables[2].missing
    assert "MMLU-Pro's subjects" in tables[7].missing
    assert "Humanity's Last Exam" in tables[8].missing
    assert "benchmark-0" in tables[8].missing
    assert any("these aren't the paper's targets" in text for text in tables[3].notes)
    assert any("no frontier and no small pool" in text for text in tables[3].notes)


def test_numbers_are_shown_with_as_many_digits_as_the_paper_has() -> None:
    assert format_value(0.69614, "number") == "0.6961"
    assert format_value(-0.00004, "share") == "0.00 %"
    assert format_value(0.1234, "points") == "+12.34 pp"
    assert format_value(14469, "count") == "14,469"
    assert format_value(0.000027, "usd") == "$0.0000270"
    assert format_value(float("nan"), "share") == "\u2013"


def cell(table: PaperTable, row: str, column: str):  # noqa: ANN201
    place = [title.rstrip(" ↑↓") for title in table.columns].index(column)
    return next(r for r in table.rows if row in r.names).cells[place]


def test_numbers_are_those_of_evaluate_and_compare(
    runs: list[PoolRun], tables: dict[int, PaperTable]
) -> None:
    (run,) = runs
    routers = [run.system(name).fit.router for name in ("SharedTrunkNet", "Unified Multitask")]
    states = ENCODER.encode(ANSWERS.queries, SITES, rounding="float32")
    predicted = [router.predict(run.test, stores=[states]) for router in routers]
    alone = evaluate(predicted[0], run.test, resamples=20)
    for number, column, name in (
        (3, "Mean AUC", "auc_mean"),
        (4, "Headroom captured (paper)", "headroom_captured"),
        (5, "P-AUCCC", "p_auccc"),
        (26, "Max-lam accuracy (paper)", "max_lam_accuracy"),
    ):
        found = cell(tables[number], "SharedTrunkNet", column).ours
        assert found.to_dict() == alone.headline[name].to_dict()
    both = compare(*predicted, run.test, resamples=20)
    difference = cell(tables[27], "P-AUCCC ↑", "Difference").ours
    assert difference.to_dict() == pytest.approx(both.difference["p_auccc"].to_dict())
    steps = [row.cells[0].ours.value for row in tables[30].rows]
    assert steps == [step.points for step in alone.steps]


def test_what_has_no_speed_has_no_completion_time(tables: dict[int, PaperTable]) -> None:
    missing = cell(tables[29], "prefill: SharedTrunkNet", "Mean target completion")
    assert missing.ours is None
    assert "no speed" in missing.why
    assert any("no speed" in text for text in tables[29].notes)
    assert cell(tables[29], "prefill: SharedTrunkNet", "Routing").ours.value > 0
    assert cell(tables[28], "argmax", "Saved, best single").paper.value == 0.509


def test_papers_numbers_stand_beside_ours(tables: dict[int, PaperTable]) -> None:
    assert cell(tables[3], "SharedTrunkNet", "Mean AUC").paper.value == 0.8817
    assert cell(tables[4], "kNN", "Headroom captured (paper)").paper.value == -0.269
    assert cell(tables[23], "SharedTrunkNet", "P-AUCCC").paper.sd == 0.0098
    assert cell(tables[26], "GraphRouter", "Mean AUC").paper.upper == 0.8094
    assert cell(tables[1], "All targets", "Queries").paper.value == 14469


def test_the_seed_plays_no_part_in_knn(tables: dict[int, PaperTable]) -> None:
    assert cell(tables[23], "kNN", "Mean AUC").sd == 0
    assert cell(tables[23], "SharedTrunkNet", "Mean AUC").sd > 0
    [fits] = [text for text in tables[23].notes if "has no effect on" in text]
    assert "kNN majority" in fits
    assert "SharedTrunkNet" not in fits


def test_it_goes_on_with_what_it_has(runs: list[PoolRun], folder: Path) -> None:
    work = folder / "work"
    broken = work / "mixed" / "studies" / "ratio.json"
    broken.write_text("{broken")
    stamps = {path: path.stat().st_mtime_ns for path in work.rglob("*.json")}
    [run] = runs
    names = {name for name, value in run.parts.items() if "missing" not in value}
    assert {path.stem for path in stamps if path.parent == broken.parent} == names
    assert "ratio" in names < set(run.parts)  # what lacks something is tried again
    again = run_on(ANSWERS, folder=work)
    changed = [path for path in stamps if path.stat().st_mtime_ns != stamps[path]]
    assert changed == [broken]
    assert to_dict(again) == to_dict(runs)


def test_parts_of_other_answers_are_not_taken(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(json.dumps({"of": "others", "value": {"encoders": []}}))
    parts = split(ANSWERS)
    scene = PoolContext(
        paper_pool=find_pools("mmlu-pro", ANSWERS)[0],
        split=parts,
        calibrated=split(ANSWERS, fractions=WITH_CALIBRATION),
        states=[ENCODER.encode(ANSWERS.queries, SITES, rounding="float32")],
        encoders=("fake",),
        recipes={},
        result=ComparisonResult(ComparisonPlan({"a": Recipe()}, "a", parts), (), ()),
        options=QUICK,
    )
    results = make_parts(scene, tmp_path, only=("sweep", "shift_benchmark"))
    assert [row["encoder"] for row in results["sweep"]["encoders"]] == ["fake"]
    assert "missing" in results["shift_benchmark"]
    assert make_parts(scene, tmp_path, only=("sweep",))["sweep"] == results["sweep"]
    other = dataclasses.replace(scene, split=split(ANSWERS, seed=1))
    assert make_parts(other, tmp_path, only=("sweep",))["sweep"] != results["sweep"]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.heads: list[str] = []
        self.outside: list[str] = []
        self.inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag == "h2"
        self.outside += [v for k, v in attrs if k in ("src", "href") and v and v[0] != "#"]

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.heads.append(data)
            self.inside = False


def test_the_page_has_tables_and_figures_in_the_papers_order(report: Path) -> None:
    text = (report / "index.html").read_text()
    reader = _Reader()
    reader.feed(text)
    titles = [head.split(".")[0] for head in reader.heads]
    tables = [head for head in titles if head.startswith("Table")]
    figures = [head for head in titles if head.startswith("Figure")]
    assert tables == [f"Table {number}" for number in range(1, 31)]
    assert figures == [f"Figure {number}" for number in range(1, 9)]
    assert titles.index("Figure 2") == titles.index("Table 3") + 1
    assert titles.index("Figure 4") == titles.index("Table 27") + 1
    assert titles.index("Figure 8") == titles.index("Table 29") + 4
    assert reader.outside == []
    assert "&lt;made-up&gt;" in text
    assert "0.8817" in text
    assert "<script" not in text


def test_files_hold_what_the_page_shows(report: Path, tables: dict[int, PaperTable]) -> None:
    assert len(list((report / "tables").glob("*.csv"))) == 30
    frame = pl.read_csv(report / "tables" / "table_03_per_llm_routing.csv")
    row = frame.filter(
        (pl.col("Router") == "SharedTrunkNet") & pl.col("number").str.starts_with("Mean AUC")
    )
    ours = cell(tables[3], "SharedTrunkNet", "Mean AUC").ours
    assert row["ours"].to_list() == [pytest.approx(ours.value)]
    assert row["paper"].to_list() == [0.8817]
    output = json.loads((report / "results.json").read_text())
    assert [table["table"] for table in output["tables"]] == list(range(1, 31))
    names = {path.name for path in (report / "figures").iterdir()}
    assert {"figure_7_mixed_raw.png", "figure_4_mixed_routing_ratio.csv"} <= names


def test_on_shuffled_labels_no_claim_about_prediction_holds() -> None:
    noise = shuffle_labels(ANSWERS, seed=1)
    costs = RoutingDataset.of(
        noise.queries,
        noise.pool,
        noise.correct,
        input_tokens=ANSWERS.input_tokens,
        output_tokens=ANSWERS.output_tokens,
    )
    claims = check(run_on(costs, studies=()))
    assert len(claims) == 5
    answers = {claim.text: claim.answer for claim in claims}
    assert answers["SharedTrunkNet has the highest mean AUC of the six routers."] != "yes"
    assert answers["SharedTrunkNet has the lowest Brier score of the six."] != "yes"


def test_pools_of_llmrouterbench_are_told_apart_by_their_targets(tmp_path: Path) -> None:
    formats.write_llmrouterbench(ANSWERS, formats.FRONTIER, tmp_path)
    formats.write_llmrouterbench(ANSWERS, formats.SMALL, tmp_path)
    dataset, _ = import_dataset("llmrouterbench", [tmp_path])
    frontier, small = find_pools("llmrouterbench", dataset)
    assert (frontier.pool, small.pool) == ("frontier", "small")
    assert set(frontier.dataset.pool.names) == set(formats.FRONTIER)
    assert small.paper_name("Llama-3.1-8B-Instruct") == "Llama-8B-Inst"
    assert len(small.absent) == 17
    assert find_pools("mmlu-pro", dataset)[0].title == "All targets"


def test_both_pools_of_llmrouterbench_from_its_files(tmp_path: Path) -> None:
    few = ANSWERS.select(ANSWERS.query_ids[:80])
    formats.write_llmrouterbench(few, formats.FRONTIER, tmp_path)
    formats.write_llmrouterbench(few, formats.SMALL[:2], tmp_path)
    dataset, _ = import_dataset("llmrouterbench", [tmp_path])
    runs = run_on(dataset, "llmrouterbench", studies=("sweep",))
    tables = {table.number: table for table in all_tables(runs)}
    assert [run.title for run in runs] == ["Frontier pool", "Small pool"]
    assert "no mixed pool" in tables[10].missing
    assert {row.names[0] for row in tables[3].rows} == {"Frontier pool", "Small pool"}
    gpt = cell(tables[17], "gpt-5", "GraphRouter")
    assert gpt.paper.value == 0.7784
    assert gpt.ours is not None
    assert any("the data lack deepseek-r1" in text for text in tables[2].notes)
    assert cell(tables[2], "fake (ours)", "gpt-5").ours is not None


def test_the_interval_of_an_auc_holds_it_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    truth, count = 0.7602, 0  # of two normal distributions one standard deviation apart
    for _ in range(1000):
        scores = np.concatenate([random.normal(1, 1, 120), random.normal(0, 1, 80)])
        labels = np.repeat([1.0, 0.0], [120, 80])
        auc = float(auc_by_target(scores[:, None], labels[:, None])[0])
        interval = with_interval(auc, 120, 80)
        count += interval["lower"] <= truth <= interval["upper"]
    assert 0.91 <= count / 1000 <= 0.98
    assert with_interval(float("nan"), 3, 0)["value"] is None
    assert with_interval(1.0, 3, 2) == {"value": 1.0, "lower": 1.0, "upper": 1.0}


def test_a_spread_needs_two_seeds() -> None:
    with pytest.raises(ConfigError, match="at least 2"):
        ReproduceOptions(seeds=1)


def test_the_command_reads_the_blueprints_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFILL_ROUTER_CACHE", str(tmp_path / "cache"))
    save_tiny_encoder(tmp_path / "tiny")
    answers = make_routing_dataset(queries=60, seed=3)
    path = formats.write_nvidia(answers, formats.MIXED, tmp_path / "train_v1.csv")
    prices = tmp_path / "prices.csv"
    prices.write_text(
        "target,usd_per_million_input_tokens,usd_per_million_output_tokens\n"
        + "".join(f"{name},{10.0**k},{40.0**k}\n" for k, name in enumerate(formats.MIXED))
    )
    out = tmp_path / "paper"
    output = json.loads(
        run_ok(
            *("reproduce", path, "--bench", "nvidia-v1", "--out", out, "--quick"),
            *("--encoder", "tiny", "--embedding", "tiny", "--encoder-folder", tmp_path / "tiny"),
            *("--prices", prices, "--resamples", 10, "--json"),
        )
    )
    (pool,) = output["pools"].values()
    assert pool["is_counterpart"]
    assert pool["targets"]["gpt-5-4-high"] == "gpt-5.4"
    tables = {table["table"]: table for table in output["tables"]}
    area = tables[5]["rows"][1]["numbers"]["P-AUCCC ↑"]
    assert area["ours"]["value"] is not None
    assert area["paper"]["value"] == 0.2323
    assert "A rehearsal" in (out / "index.html").read_text()


def test_the_command_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    command = ("reproduce", tmp_path / "none.csv", "--bench", "nvidia-v1", "--out")
    check_refused("is no study 'reproduction'", *command, tmp_path / "out")
    check_refused("no such file", *command, tmp_path / "new")
