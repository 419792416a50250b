"""From a table to a router, in one call."""

import random
import re
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest

import prefill_router
from prefill_router.errors import ConfigError, PrefillRouterError, addressing_python, name_option
from prefill_router.fitting import cross_fitting
from prefill_router.importers import Columns, Scale
from prefill_router.importers.values import advice
from prefill_router.quickstart import read_table


def rows(queries: int, *, best: int = 5) -> list[dict[str, Any]]:
    """Sums, which one target can do, and words, which the other can; scored from 1."""
    chance = random.Random(0)
    questions = [
        f"What is {chance.randint(100, 900)}+{chance.randint(100, 900)}?"
        if n % 2
        else f"Spell the word number {chance.randint(1, 10**6)} backwards, please."
        for n in range(queries)
    ]
    return [
        {
            "question": text,
            "model": model,
            "rating": chance.choice((best - 1, best) if n % 2 == k else (1, 2)),
            "cost": (1 + k) * 1e-4,
        }
        for n, text in enumerate(questions)
        for k, model in enumerate(("gpt-4o-mini", "mine"))
    ]


def test_tables_of_every_kind_are_read_alike(tmp_path: Path) -> None:
    plain = rows(8)
    frame = pl.DataFrame(plain)
    frame.write_csv(tmp_path / "t.csv")
    tables = (plain, frame, pd.DataFrame(plain), tmp_path / "t.csv", str(tmp_path / "t.csv"))
    first, *datasets = [read_table(table) for table in tables]
    assert {other.fingerprint for other in datasets} == {first.fingerprint}
    assert first.correct.min() == 0.0
    assert read_table(first) is first


def test_what_cannot_be_known_is_asked_for() -> None:
    table = [{**row, "rank": row["rating"]} for row in rows(8)]
    for row in table:
        del row["rating"]
    with pytest.raises(ConfigError, match="columns=Columns"):
        read_table(table)
    dataset = read_table(table, columns=Columns(scale=Scale(ends=(5, 1))))
    assert dataset.correct.max() == 1.0
    with pytest.raises(ConfigError, match="is a int"):
        read_table(3)


def test_all_that_a_table_does_not_tell_is_asked_for_at_once() -> None:
    table = [
        {
            "question": f"number {n}?",
            "reply_by": "model",
            "rank": 1 + n % 3,
            "model": name,
            "llm": n,
        }
        for n in range(6)
        for name in ("a", "b")
    ]
    for row in table:
        row["grade"] = 4 - int(str(row["rank"]))
    with pytest.raises(ConfigError) as error:
        read_table(table)
    assert "correct='grade', scale=Scale(ends=(WORST, BEST))" in str(error.value)
    dataset = read_table(table, columns=Columns(correct="rank", scale=Scale(ends=(3, 1))))
    assert dataset.correct.max() == 1.0


@pytest.mark.slow
def test_a_table_becomes_a_router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFILL_ROUTER_CACHE", str(tmp_path))
    monkeypatch.setattr(cross_fitting, "FOLDS", 2)
    result = prefill_router.fit(rows(80), encoder="minipool", effort="quick")
    router = result.router
    assert result.verdict is not None
    assert result.verdict.compared == 80
    assert result.curve is not None
    assert result.plot().rows
    own = prefill_router.plot(result.router)
    series = {row["series"] for row in own.rows if isinstance(row, dict)}
    assert series >= {"router", "best fixed mix", "price alone"}
    assert [file.name for file in own.save(tmp_path / "own.png")] == [
        "own.png",
        "own.svg",
        "own.csv",
    ]
    assert router.route("What is 123+456?", lam=1).target == "mine"
    assert router.route("Spell the word number 12345 backwards, please.").target == "gpt-4o-mini"


def test_columns_are_a_dict_too() -> None:
    table = {name: [row[name] for row in rows(8)] for name in rows(8)[0]}
    dataset = read_table(table, columns={"prompt": "question", "scale": Scale(ends=(1, 5))})
    assert len(dataset) == 8
    with pytest.raises(ConfigError, match="did you mean 'prompt'"):
        read_table(table, columns={"promt": "question"})
    with pytest.raises(ConfigError, match="give a list of columns"):
        read_table(table, columns={"targets": "mine"})
    with pytest.raises(ConfigError, match="lists of the same length"):
        read_table({"question": "What?", "mine": 1})


WIDE = pl.DataFrame({"question": [f"What is {n}?" for n in range(40)], "a": [0, 1] * 20})


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (WIDE, "columns=Columns(target=..., correct=...)"),
        (WIDE.head(0), "columns=Columns(targets=(...))"),
        (WIDE.drop("question").with_columns(b="a"), "columns=Columns(prompt='NAME')"),
        (pl.concat([WIDE, WIDE.with_columns(a=1 - pl.col("a"))]).with_columns(b=pl.col("a")),
         'columns=Columns(repeats="mean")'),
        (WIDE.select("question", a_rank=pl.col("a") + 1, b_rank=2 - pl.col("a")),
         "Scale(ends=(WORST, BEST))"),
    ],
)  # fmt: skip
def test_errors_name_what_a_notebook_has(table: pl.DataFrame, words: str) -> None:
    with pytest.raises(PrefillRouterError) as error:
        read_table(table)
    message = str(error.value)
    assert words in message
    assert not re.search(r"(?<!install )--[a-z]|parquet|/tmp|prefill-router-", message)
    for name in re.findall(r"\b([A-Z][a-z]+)\(", message):
        assert hasattr(prefill_router, name)


def test_rows_that_cannot_be_read_are_to_be_corrected() -> None:
    table = [{**row, "rating": "?" if row["rating"] == 2 else row["rating"]} for row in rows(20)]
    with pytest.raises(
        PrefillRouterError, match=r"row \d+ of the table: .*; correct these"
    ) as error:
        read_table(table, columns=Columns(correct="rating", scale=Scale(ends=(1, 5))))
    assert "--" not in str(error.value)


def test_an_option_is_named_as_its_reader_gives_it() -> None:
    assert advice([1.0, 5.0]).endswith("such as --threshold 4")
    with addressing_python():
        assert "columns=Columns(scale=Scale(ends=(1, 5)))" in advice([1.0, 5.0])
        assert name_option("--batch-tokens 9") == "batch tokens 9"
