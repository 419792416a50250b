"""What notebooks show: tables, figures and probabilities, and the router of the package."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from prefill_router import Router, Target, plot, read_dataset
from prefill_router.errors import ConfigError
from prefill_router.evaluation import evaluate
from prefill_router.router.record import card
from prefill_router.testing import make_routing_dataset

PROMPTS = ["12 + 30 =", "Turn the letters around: house", "Who are you?"]


@pytest.fixture(scope="module")
def packaged_router() -> Router:
    return Router.from_pretrained("minipool")


def test_two_lines_route_outside_of_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    router = Router.from_pretrained("minipool")
    assert router.route("12 + 30 =", lam=0.8).target == "abacus"


def test_the_packaged_router_is_worth_it_and_says_whose_terms_hold(packaged_router: Router) -> None:
    assert packaged_router.record.verdict is not None
    assert packaged_router.record.verdict["word"] == "worth it"
    assert packaged_router.pool.public() == packaged_router.pool  # it names no endpoint


def test_a_card_names_the_licences(packaged_router: Router, tmp_path: Path) -> None:
    packaged_router.save(tmp_path / "router")
    text = (tmp_path / "router/README.md").read_text()
    assert "The encoder minipool: Apache-2.0, as prefill-router." in text
    assert "The answers (minipool): Apache-2.0, as prefill-router." in text
    untold = packaged_router.record.model_copy(update={"licences": {}})
    text = card(untold, packaged_router.pool, [], [], version=5)
    assert "The answers (minipool): not recorded" in text
    licences = {"minipool": "MIT", "other": "CC0"}  # the benchmark has the encoder's name
    packaged_router.with_record(packaged_router.record.with_licences(licences)).save(
        tmp_path / "told"
    )
    text = (tmp_path / "told/README.md").read_text()
    assert "The encoder minipool: MIT.\n" in text
    assert "The answers (minipool): MIT.\n" in text
    assert "- other: CC0.\n" in text
    assert Router.load(tmp_path / "told").record.licences == licences


@pytest.mark.parametrize(
    ("encoder", "revision", "made_from"),
    [
        ("minilm", "sha256:00", ["sentence-transformers/all-MiniLM-L6-v2"]),
        ("Qwen/Qwen3-0.6B", "0a" * 20, ["Qwen/Qwen3-0.6B"]),
        ("models/mine", "sha256:00", None),
        ("minipool", "sha256:00", None),
    ],
)
def test_a_card_names_the_encoders_for_the_hub(
    packaged_router: Router, encoder: str, revision: str, made_from: list[str] | None
) -> None:
    facts = {"encoder": encoder, "revision": revision}
    text = card(packaged_router.record, packaged_router.pool, [], [facts], version=5)
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["library_name"] == "prefill-router"
    assert front.get("base_model") == made_from


def test_probabilities_are_a_table_with_named_targets(packaged_router: Router) -> None:
    table = packaged_router.predict_proba(PROMPTS)
    assert isinstance(table, pl.DataFrame)
    assert table.columns == list(packaged_router.pool.names)
    # by itself a prompt's states are rounded otherwise
    together = packaged_router.route_many(PROMPTS)
    for row, decision in zip(table.iter_rows(named=True), together, strict=True):
        assert row == pytest.approx(dict(decision.correctness), abs=1e-6)
    assert packaged_router.predict_proba([]).shape == (0, 5)


def test_tables_have_every_target_and_escape_names(packaged_router: Router) -> None:
    decision = packaged_router.route(PROMPTS[0], lam=0.8)
    for item in (packaged_router, decision, make_routing_dataset(queries=20)):
        text = item._repr_html_()
        names = (
            packaged_router.pool.names if item in (packaged_router, decision) else item.pool.names
        )
        assert all(f"<td>{name}</td>" in text for name in names)
    assert "&lt;Router: 5 targets" in packaged_router._repr_html_()
    assert "worth it: " in packaged_router._repr_html_()
    assert decision._repr_html_().index(">abacus<") < decision._repr_html_().index(">scribe<")


@pytest.mark.slow
def test_plots_are_pictures_with_their_data(packaged_router: Router, tmp_path: Path) -> None:
    dataset = make_routing_dataset(queries=60)
    for number, item in enumerate((packaged_router, packaged_router.route(PROMPTS[0]), dataset)):
        picture = plot(item)
        assert picture._repr_png_().startswith(b"\x89PNG")
        files = picture.save(tmp_path / f"plot{number}")
        assert [file.suffix for file in files] == [".png", ".svg", ".csv"]
        with files[2].open() as file:
            rows = list(csv.DictReader(file))
        if item is packaged_router:
            assert packaged_router.record.verdict is not None
            points = {row["point"] for row in rows if row["series"] == "router"}
            assert points == {point["name"] for point in packaged_router.record.verdict["curve"]}
        else:
            names = dataset.pool.names if item is dataset else packaged_router.pool.names
            assert {row["target"] for row in rows} == set(names)


@pytest.mark.slow
def test_an_evaluation_is_shown_by_its_numbers_and_its_curve(packaged_router: Router) -> None:
    answers = read_dataset(Path("docs/notebooks/answers"))
    test = answers.select(packaged_router.split["test"])
    evaluation = evaluate(packaged_router.predict(test), test, resamples=20)
    assert f"<td>{evaluation.headline['auc_mean'].value:.4g}</td>" in evaluation._repr_html_()
    picture = plot(evaluation)
    assert picture._repr_png_().startswith(b"\x89PNG")
    assert {"router", "band", "oracle"} <= {row["series"] for row in picture.rows}


def test_where_no_cost_is_known_targets_have_rows() -> None:
    dataset = make_routing_dataset(queries=60)
    dollars = np.full(dataset.correct.shape, np.nan)
    pool = replace(dataset.pool, targets=tuple(Target(name=name) for name in dataset.pool.names))
    picture = plot(replace(dataset, recorded_cost=dollars, pool=pool))
    assert [label.get_text() for label in picture.figure.axes[0].get_yticklabels()] == list(
        pool.names
    )
    assert all(np.isnan(row["cost"]) for row in picture.rows)


def test_what_cannot_be_drawn_is_told() -> None:
    with pytest.raises(ConfigError, match="a Decision, a Router, a RoutingDataset or an"):
        plot("a text")
