import dataclasses
import json
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.metadata import EntryPoints
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from packages.router.tests.commands import check_refused, run, run_ok
from packages.router.tests.fakes.planted_signal import states_of
from prefill_router.comparison import (
    ALL,
    ONE_BY_ONE,
    STUDY,
    ComparisonPlan,
    ComparisonResult,
    count_tokens,
    list_left_out,
    recipes_of,
    run_plan,
    write,
)
from prefill_router.comparison.comparison import CONSTANT, draw_for
from prefill_router.comparison.report import significance_of, to_dict, verdict
from prefill_router.data import RoutingDataset, split, write_dataset
from prefill_router.encoders import encode_dataset
from prefill_router.errors import ConfigError, FitError, FormatError
from prefill_router.evaluation import Estimate, compare, evaluate
from prefill_router.evaluation.scores import NOTHING
from prefill_router.features import complexity
from prefill_router.fitting import FitConfig, learn, recipe_from_dict
from prefill_router.plugins import find_every_plugin
from prefill_router.predictors import PREDICTORS
from prefill_router.progress import SilentProgress
from prefill_router.reporting.report_files import mark
from prefill_router.router import Router
from prefill_router.testing import FakeEncoder, make_routing_dataset

pytestmark = pytest.mark.slow

ANSWERS = make_routing_dataset(queries=300, seed=5)
STATES = states_of(ANSWERS)
FEATURES: dict[str, Any] = {"features": {"kind": "prefill", "dim": 6}}
LINEAR: dict[str, Any] = {"kind": "logistic", "c": 0.1, "scaling": "common"}
RECIPES = {
    "ours": recipe_from_dict({**FEATURES, "predictor": LINEAR}),
    "nothing & <less>": recipe_from_dict({**FEATURES, "predictor": "constant"}),
    "tolerant": recipe_from_dict({**FEATURES, "predictor": LINEAR, "policy": "tolerance"}),
}


def plan(dataset: RoutingDataset = ANSWERS, **options: Any) -> ComparisonPlan:
    return ComparisonPlan(RECIPES, "ours", split(dataset), resamples=100, **options)


@pytest.fixture(scope="module")
def router_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the result's routers."""
    return tmp_path_factory.mktemp("routers")


@pytest.fixture(scope="module")
def result(router_folder: Path) -> ComparisonResult:
    return run_plan(plan(), ANSWERS, [STATES], folder=router_folder)


@pytest.fixture(scope="module")
def report(result: ComparisonResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("comparison")
    mark(folder, STUDY, result.plan.to_dict())
    write(result, folder, title="Routers on 300 queries", facts={"dataset": "<made up>"})
    return folder


def test_numbers_are_those_of_evaluate_and_compare(result: ComparisonResult) -> None:
    test = ANSWERS.select(result.plan.split["test"])
    tolerant, ours = result.by_name["tolerant"], result.by_name["ours"]
    predictions = [r.fit.router.predict(test, stores=[STATES]) for r in (tolerant, ours)]
    policies = (tolerant.fit.router.policy, ours.fit.router.policy)
    chosen = (tolerant.fit.router.record.chosen, ours.fit.router.record.chosen)
    alone = evaluate(
        predictions[0],
        test,
        policy=policies[0],
        resamples=100,
        chosen=chosen[0],
        references=tolerant.fit.router.references,
    )
    assert tolerant.evaluation.to_dict() == alone.to_dict()
    pair = compare(*predictions, test, policies=policies, resamples=100, chosen=chosen)
    for name in set(tolerant.against) - {"aiq", "pareto_dist"}:  # they depend on all routers
        assert tolerant.against[name].to_dict() == pair.difference[name].to_dict()
        assert tolerant.headline[name].to_dict() == alone.headline[name].to_dict()


def test_the_reference_is_not_compared_with_itself(result: ComparisonResult) -> None:
    assert not result.by_name["ours"].against
    assert significance_of(result.by_name["ours"].against, "auc_mean") == ""


def test_the_constant_does_not_beat_the_constant(result: ComparisonResult) -> None:
    assert result.beaten_by_constant == ["nothing & <less>"]
    assert significance_of(result.by_name["nothing & <less>"].against, "auc_mean") == "worse"
    assert significance_of(result.by_name["tolerant"].against, "auc_mean") == ""


def test_on_shuffled_labels_nobody_beats_the_constant() -> None:
    order = np.random.default_rng(0).permutation(len(ANSWERS))
    noise = dataclasses.replace(ANSWERS, correct=ANSWERS.correct[order])
    comparison = run_plan(plan(noise), noise, [STATES])
    assert comparison.beaten_by_constant == list(RECIPES)


def test_it_goes_on_with_the_routers_that_it_has(
    result: ComparisonResult, router_folder: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(router_folder, tmp_path / "routers")
    stamps = {p: p.stat().st_mtime_ns for p in folder.rglob("router.json")}
    assert len(stamps) == len(RECIPES)
    again = run_plan(plan(), ANSWERS, [STATES], folder=folder)
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps
    evaluation = to_dict(again)["routers"]["ours"]["evaluation"]
    assert evaluation == to_dict(result)["routers"]["ours"]["evaluation"]
    other = ComparisonPlan(RECIPES, "ours", split(ANSWERS, seed=1), resamples=0)
    run_plan(other, ANSWERS, [STATES], folder=folder)
    assert all(p.stat().st_mtime_ns != stamp for p, stamp in stamps.items())


def test_nothing_is_kept_of_other_prices_or_other_soft_labels(tmp_path: Path) -> None:
    judge = tmp_path / "judge.csv"
    train = split(ANSWERS)["train"]
    rows = [{"query_id": i, "target": "target-0", "score": 0.5} for i in train]
    pl.DataFrame(rows).write_csv(judge)
    soft = recipe_from_dict({**FEATURES, "predictor": "constant", "soft_labels": {"file": judge}})
    soft_plan = ComparisonPlan({"soft": soft}, "soft", split(ANSWERS), resamples=0)

    def fit_soft(dataset: RoutingDataset) -> Router:
        comparison = run_plan(soft_plan, dataset, [STATES], folder=tmp_path / "routers")
        return comparison.by_name["soft"].fit.router

    before = fit_soft(ANSWERS)
    dearer = dataclasses.replace(ANSWERS, output_tokens=2 * ANSWERS.output_tokens)
    assert dearer.fingerprint == ANSWERS.fingerprint  # it depends on labels alone
    test = ANSWERS.select(split(ANSWERS)["test"])
    costs = [r.predict(test, stores=[STATES]).estimated_cost for r in (before, fit_soft(dearer))]
    assert (costs[1] > costs[0]).all()
    pl.DataFrame([{**row, "score": 0.9} for row in rows]).write_csv(judge)
    other = fit_soft(dearer).predict(test, stores=[STATES]).correctness
    assert (other[:, 0] > before.predict(test, stores=[STATES]).correctness[:, 0]).all()


def test_what_is_kept_loads_and_routes_alike(result: ComparisonResult, router_folder: Path) -> None:
    test = ANSWERS.select(result.plan.split["test"])
    comparison = run_plan(plan(), ANSWERS, [STATES])  # without a folder
    predictions = [
        router.fit.router.predict(test, stores=[STATES]) for router in comparison.routers
    ]
    folders = list(router_folder.glob("*/"))
    assert len(folders) == len(RECIPES)
    for folder in folders:
        correctness = Router.load(folder).predict(test, stores=[STATES]).correctness
        assert any((prediction.correctness == correctness).all() for prediction in predictions)


def test_a_router_that_cannot_be_fitted_is_named_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: Any, config: FitConfig) -> Router:
        if config.recipe is RECIPES["tolerant"]:
            raise FitError("there is nothing to learn")
        return learn(*arguments, config=config)

    monkeypatch.setattr("prefill_router.comparison.recipe_fits.learn", fail)
    recipes = {name: RECIPES[name] for name in ("ours", "tolerant")}
    comparison = run_plan(
        ComparisonPlan(recipes, "ours", split(ANSWERS), resamples=10), ANSWERS, [STATES]
    )
    assert [router.name for router in comparison.routers] == ["ours"]
    assert to_dict(comparison)["failed"] == {"tolerant": "there is nothing to learn"}
    assert to_dict(comparison)["left_out"] == {}
    reference = ComparisonPlan(recipes, "tolerant", split(ANSWERS), resamples=10)
    with pytest.raises(FitError, match="the reference 'tolerant' can't be fitted"):
        run_plan(reference, ANSWERS, [STATES])


def test_a_router_that_needs_an_extra_is_left_out_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyphen", None)
    for cached in (complexity._load_patterns, complexity._of_word):  # other tests filled them
        cached.cache_clear()
    readable = recipe_from_dict({"features": "complexity", "predictor": "constant"})
    recipes = {"ours": RECIPES["ours"], "readable": readable}
    comparison = run_plan(
        ComparisonPlan(recipes, "ours", split(ANSWERS), resamples=10), ANSWERS, [STATES]
    )
    assert [router.name for router in comparison.routers] == ["ours"]
    assert to_dict(comparison)["failed"] == {}
    installs = "pip install 'prefill-router[complexity]'"
    assert to_dict(comparison)["left_out"] == {"readable": installs}
    assert list_left_out(comparison.left_out) == [f"left out, not installed: readable ({installs})"]
    reference = ComparisonPlan(recipes, "readable", split(ANSWERS), resamples=10)
    with pytest.raises(FitError, match=r"the reference 'readable' can't.*\[complexity\]"):
        run_plan(reference, ANSWERS, [STATES])


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No other distribution is installed."""
    monkeypatch.setattr("prefill_router.plugins.entry_points", EntryPoints)
    find_every_plugin.cache_clear()
    yield
    find_every_plugin.cache_clear()


LAB_FOLDERS = "./packages/router ./packages/lab"
LIST = """
routers:
  Constant: {features: complexity, predictor: constant}
  IRT-2PL: {features: complexity, predictor: irt}
  MIRT-2PL: {features: complexity, predictor: {kind: irt, dimensions: 8}}
"""


@pytest.mark.usefixtures("alone")
def test_baselines_of_the_packaged_list_that_are_not_installed_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "all.yaml").write_text(LIST)
    monkeypatch.setattr(
        "prefill_router.comparison.comparison._PACKAGED_LIST", tmp_path / "all.yaml"
    )
    write_dataset(ANSWERS, tmp_path / "answers")
    out, line = tmp_path / "out", "eft out, not installed: IRT-2PL, MIRT-2PL"
    command = ("compare", ALL, "--data", tmp_path / "answers", "--out", out, "--resamples", 20)
    run_result = run(*command)
    assert run_result.code == 0, run_result.err
    assert f"l{line} (pip install {LAB_FOLDERS})" in " ".join(run_result.err.split())
    numbers = json.loads((out / "compare.json").read_text())
    assert list(numbers["routers"]) == ["Constant"]
    assert numbers["failed"] == {}
    installs = f"pip install {LAB_FOLDERS}"
    assert numbers["left_out"] == {"IRT-2PL": installs, "MIRT-2PL": installs}
    assert f"L{line} ({installs})." in (out / "index.html").read_text()
    for option in (("--reference", "IRT-2PL"), ("--encoder-price", "IRT-2PL=1")):
        check_refused(f"IRT-2PL is left out: .*install it with: {installs}", *command, *option)


@pytest.mark.usefixtures("alone")
def test_a_kind_of_ones_own_list_that_is_not_installed_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(LIST)
    write_dataset(ANSWERS, tmp_path / "answers")
    data = ("--data", tmp_path / "answers", "--out", tmp_path / "out")
    reason = "there is no predictor 'irt'.*prefill-router-lab: install"
    check_refused(reason, "compare", tmp_path / "mine.yaml", *data)
    assert not (tmp_path / "out").exists()


class Offline(HTMLParser):
    """Collects what a page would fetch, and its words."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag in ("script", "link", "img", "iframe"):
            self.fetched.append(str(attributes))
        if str(attributes.get("href") or "#")[0] != "#":
            self.fetched.append(str(attributes))

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_opens_offline_and_says_who_is_best(
    report: Path, result: ComparisonResult
) -> None:
    text = (report / "index.html").read_text()
    page = Offline()
    page.feed(text)
    assert not page.fetched
    assert not re.search(r"url\(\s*['\"]?http", text)
    for line in verdict(result):
        assert line in page.words
    assert "nothing & <less>" in page.words
    assert "<made up>" in page.words
    assert "Not significantly better than always predicting" in page.words
    assert "reads no text of an answer" in page.words


def test_each_router_stands_beside_the_mix_and_price_alone(
    report: Path, result: ComparisonResult
) -> None:
    routers = pl.read_csv(report / "routers.csv")
    for row, router in enumerate(result.routers):
        ruling = router.evaluation.verdict
        assert ruling is not None
        assert ruling.setting.price is not None
        assert routers["gain_over_mix"][row] == pytest.approx(ruling.setting.mix.gain.value)
        assert routers["gain_over_price"][row] == pytest.approx(ruling.setting.price.gain.value)
    text = (report / "index.html").read_text()
    assert "Setting, over price alone" in text
    assert "price alone" in (report / "figures" / "curves.svg").read_text()
    points = pl.read_csv(report / "figures" / "curves.csv", infer_schema_length=None)
    curve = points.filter(pl.col("router") == "(price alone)")
    own = result.by_name["ours"].evaluation.price_alone
    assert curve["mean_cost"].to_list() == pytest.approx([point.mean_cost for point in own])


def test_files_beside_the_page(report: Path, result: ComparisonResult) -> None:
    numbers = json.loads((report / "compare.json").read_text())
    assert list(numbers["routers"]) == list(RECIPES)
    routers = pl.read_csv(report / "routers.csv")
    assert routers["router"].to_list() == list(RECIPES)
    value = result.by_name["ours"].evaluation.headline["p_auccc"].value
    assert routers["p_auccc"][0] == pytest.approx(value)
    pairs = pl.read_csv(report / "paired.csv", infer_schema_length=None)
    assert set(pairs["minus"]) == {"reference", "constant"}
    assert len(pl.read_csv(report / "targets.csv")) == 3 * 3 * 2
    for name in ("curves", "intervals"):
        for suffix in (".png", ".svg", ".csv"):
            assert (report / "figures" / f"{name}{suffix}").stat().st_size > 100
    points = pl.read_csv(report / "figures" / "curves.csv", infer_schema_length=None)
    curve = result.by_name["ours"].evaluation.curve
    ours = points.filter(pl.col("router") == "ours")
    assert ours["accuracy"].to_list() == pytest.approx(curve.accuracy.tolist())


@pytest.mark.usefixtures("alone")
def test_the_packaged_list_has_every_kind_of_the_router() -> None:
    packaged_list = recipes_of(ALL)
    kinds = {recipe.to_dict()["predictor"]["kind"] for recipe in packaged_list.recipes.values()}
    assert kinds == set(PREDICTORS.own) - {"constant", "given", "stack"}
    assert next(iter(packaged_list.recipes)) == "SharedTrunkNet"
    assert {failure.requirement for failure in packaged_list.left_out} == {LAB_FOLDERS}
    assert {"IRT-2PL", "MLP", "XGBoost", "GraphRouter"} <= {f.name for f in packaged_list.left_out}
    drawn_split = draw_for(packaged_list.recipes, ANSWERS, seed=0)
    assert "calibration" in drawn_split.parts


def test_an_unknown_reference_and_list_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="which is the baseline's name"):
        ComparisonPlan({CONSTANT: RECIPES["ours"]}, CONSTANT, split(ANSWERS))
    with pytest.raises(ConfigError, match="'nobody'; it must be a router of the list"):
        ComparisonPlan(RECIPES, "nobody", split(ANSWERS))
    for bad in ({"resamples": -1}, {"seed": -1}):  # before anything is fitted
        with pytest.raises(ConfigError, match="neither may be negative"):
            ComparisonPlan(RECIPES, "ours", split(ANSWERS), **bad)
    with pytest.raises(FormatError, match="no such file"):
        recipes_of(str(tmp_path / "routers.yaml"))


def test_what_an_encoder_charges_is_in_the_cost_of_its_router_alone(
    result: ComparisonResult, tmp_path: Path
) -> None:
    comparison = run_plan(plan(prices={"ours": 0.5}), ANSWERS, [STATES])
    test = ANSWERS.select(result.plan.split["test"])
    router = result.by_name["ours"].fit.router
    read = count_tokens(
        router, test, stores=[STATES], cache=tmp_path, progress=SilentProgress()
    ).mean()
    before, after = (
        {
            name: router.evaluation.headline["argmax_cost"].value
            for name, router in run.by_name.items()
        }
        for run in (result, comparison)
    )
    assert after.pop("ours") == pytest.approx(before.pop("ours") + 0.5e-6 * read)
    assert after == before
    assert to_dict(comparison)["encoder_prices"] == {"ours": 0.5}


@pytest.mark.parametrize(
    ("price", "code", "message"),
    [
        ("nobody=1", 1, "for nobody; it must be for routers of the list"),
        ("constant=-1", 1, "0 or more"),
        ("constant=cheap", 2, "ROUTER=DOLLARS"),
        ("constant", 2, "ROUTER=DOLLARS"),
    ],
)
def test_a_price_of_no_router_and_no_price_are_refused(
    price: str, code: int, message: str, tmp_path: Path
) -> None:
    write_dataset(ANSWERS, tmp_path / "answers")
    plan = tmp_path / "plan.yaml"
    plan.write_text("routers: {constant: {features: complexity, predictor: constant}}")
    place = ("--data", tmp_path / "answers", "--out", tmp_path / "out")
    check_refused(message, "compare", plan, *place, "--encoder-price", price, code=code)
    assert not (tmp_path / "out").exists()


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    check_refused("is no study 'comparison'", "compare", ALL, "--data", tmp_path, "--out", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_as_a_command(tmp_path: Path) -> None:
    write_dataset(ANSWERS, tmp_path / "answers")
    routers = {name: recipe.to_dict() for name, recipe in RECIPES.items()}
    (tmp_path / "routers.yaml").write_text(json.dumps({"routers": routers}))
    store, out = tmp_path / "states", tmp_path / "out"
    encode_dataset(ANSWERS, FakeEncoder(), store, sites=STATES.sites, rounding="float32")
    command = ("compare", tmp_path / "routers.yaml", "--data", tmp_path / "answers")
    output = run_ok(*command, "--store", store, "--out", out, "--resamples", 20)
    assert "not surely better than a constant" in output
    assert "over price: the gain in points" in " ".join(output.split())
    assert ONE_BY_ONE in " ".join(output.split())
    numbers = json.loads(
        run_ok(*command, "--store", store, "--out", out, "--resamples", 5, "--json")
    )
    assert list(numbers["routers"]) == list(RECIPES)
    assert (out / "index.html").is_file()
    assert Router.load(out / "routers" / "ours").pool.names == ANSWERS.pool.names


def test_the_page_begins_with_whether_routers_are_worth_it(
    report: Path, result: ComparisonResult
) -> None:
    assert "against the best fixed mix of targets" in verdict(result)[0]
    curves = (report / "figures" / "curves.svg").read_text()
    assert "the other routers" not in curves  # all three have a colour


def test_a_verdict_without_a_number_says_why(result: ComparisonResult) -> None:
    unknown = Estimate(np.nan, np.nan, np.nan, 1, "no two targets have labels of one query")
    lost = {"choice_auc": unknown, "best_single_accuracy": unknown}
    routers = tuple(
        dataclasses.replace(router, headline={**router.headline, **lost})
        for router in result.routers
    )
    text = " ".join(verdict(dataclasses.replace(result, routers=routers)))
    assert "isn't known: no two targets have labels of one query" in text
    assert NOTHING not in text


def test_nothing_at_chance_is_called_the_best(result: ComparisonResult) -> None:
    low = {name: Estimate(0.45, 0.4, 0.5, 1, "") for name in ("choice_auc", "auc_mean")}
    routers = tuple(
        dataclasses.replace(router, headline={**router.headline, **low})
        for router in result.routers
    )
    text = " ".join(verdict(dataclasses.replace(result, routers=routers)))
    assert "best predicts" not in text
    assert text.count("one half, which chance has (0.450)") == 2
