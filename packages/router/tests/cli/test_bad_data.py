"""Datasets, splits and prices that can't be used, given to every command that reads them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from packages.router.tests.commands import SEALED_FIT, Job, check_refused, run_ok, truncate

pytestmark = pytest.mark.slow

Breaking = Callable[[Path], object]


def without_checksums(folder: Path) -> None:
    """Remove the checksums, as a dataset of another tool lacks them."""
    (folder / "SHA256SUMS").unlink()


def edit(name: str, change: Callable[[pl.DataFrame], pl.DataFrame]) -> Breaking:
    """Rewrites a table of the dataset."""

    def break_frame(folder: Path) -> None:
        path = folder / f"{name}.parquet"
        change(pl.read_parquet(path)).write_parquet(path)

    return break_frame


def write(name: str, content: bytes) -> Breaking:
    return lambda folder: (folder / name).write_bytes(content)


def labels(value: object) -> Breaking:
    return edit("outcomes", lambda f: f.with_columns(pl.lit(value).alias("correct")))


def first_row(column: str, value: object) -> Callable[[pl.DataFrame], pl.DataFrame]:
    return lambda f: f.with_columns(
        pl.when(pl.int_range(pl.len()) == 0)
        .then(pl.lit(value))
        .otherwise(pl.col(column))
        .alias(column)
    )


COMMANDS = ("describe", "split", "encode", "layers", "sweep", "fit", "evaluate")
BAD_DATA: dict[str, tuple[Breaking, str]] = {
    "missing folder": (shutil.rmtree, "answers: no such folder"),
    "file, no folder": (lambda d: (shutil.rmtree(d), d.write_text("x")), "can't be|not|no such"),
    "empty folder": (lambda d: (shutil.rmtree(d), d.mkdir()), "queries.parquet: no such file"),
    "no outcomes": (lambda d: (d / "outcomes.parquet").unlink(), "outcomes.parquet: no such file"),
    "empty file": (write("queries.parquet", b""), "queries.parquet: not a readable Parquet"),
    "noise": (write("outcomes.parquet", bytes(range(256)) * 9), "outcomes.parquet: not a readable"),
    "truncated": (lambda d: truncate(d / "queries.parquet"), "queries.parquet: not a readable"),
    "a folder for a file": (
        lambda d: ((d / "queries.parquet").unlink(), (d / "queries.parquet").mkdir()),
        "queries.parquet",
    ),
    "no queries": (edit("queries", lambda f: f.clear()), "holds no queries"),
    "no ids": (edit("queries", lambda f: f.drop("query_id")), "lacks the columns"),
    "no prompts": (
        edit("queries", lambda f: f.drop("prompt", "messages")),
        "lacks a column prompt",
    ),
    "null id": (
        edit("queries", first_row("query_id", None)),
        "parquet:1: query_id is null",
    ),
    "empty id": (edit("queries", first_row("query_id", "")), "empty id"),
    "null prompt": (edit("queries", first_row("prompt", None)), "queries.parquet:1: has neither"),
    "repeated id": (edit("queries", lambda f: pl.concat([f, f[:1]])), "query ids repeat"),
    "repeated outcome": (
        edit("outcomes", lambda f: pl.concat([f, f[:1]])),
        "has more than one outcome for target",
    ),
    "unknown query": (
        edit("outcomes", first_row("query_id", "?")),
        "unknown values in query_id: 1,",
    ),
    "unknown target": (
        edit("outcomes", first_row("target", "?")),
        "unknown values in target: 1,",
    ),
    "label above one": (labels(1.5), "correct holds 1.5; labels are in"),
    "negative label": (labels(-1.0), "negative or infinite"),
    "infinite label": (labels(float("inf")), "negative or infinite"),
    "textual label": (labels("maybe"), "correct has the type String; it needs numbers"),
    "negative tokens": (
        edit("outcomes", lambda f: f.with_columns(pl.lit(-1.0).alias("input_tokens"))),
        "input_tokens holds negative",
    ),
    "empty pool": (write("pool.yaml", b""), "pool.yaml"),
    "pool of noise": (write("pool.yaml", b"\xff\xfe\x00"), "pool.yaml: not a text file"),
    "deep pool": (write("pool.yaml", b"[" * 3_000), "pool.yaml.*: not"),
    "truncated pool": (lambda d: truncate(d / "pool.yaml"), "pool"),
    "no targets": (write("pool.yaml", b"targets: []\n"), "pool.yaml: targets"),
    "price below zero": (
        write("pool.yaml", b"targets: [{name: a, input_price: -1, output_price: 1}]\n"),
        "pool.yaml: target 'a' has the price -1",
    ),
    "price is NaN": (
        write("pool.yaml", b"targets: [{name: a, input_price: .nan, output_price: 1}]\n"),
        "pool.yaml: target 'a' has the price nan",
    ),
    "two of a name": (write("pool.yaml", b"targets: [{name: a}, {name: a}]\n"), "more than once"),
}


def commands(job: Job, out: Path) -> dict[str, tuple[object, ...]]:
    """Every command that reads a dataset, with arguments that succeed."""
    quick = ("--dim", 4)
    return {
        "describe": ("describe", job.answers),
        "split": ("split", job.answers, "--out", out),
        "encode": ("encode", job.answers, "--encoder", job.tiny, "--out", out),
        "layers": ("layers", job.answers, "--store", job.states, *quick, "--out", out),
        "sweep": ("sweep", job.answers, "--store", job.states, *quick, "--out", out),
        "fit": (*SEALED_FIT, job.answers, "--store", job.states, *quick, "--out", out),
        "evaluate": (
            *("evaluate", job.router, "--data", job.answers, "--store", job.states),
            *("--out", out, "--resamples", 20),
        ),
    }


@pytest.mark.parametrize(("place", "bad"), [*enumerate(BAD_DATA)], ids=BAD_DATA)
def test_dataset_that_cannot_be_used(copy: Job, tmp_path: Path, place: int, bad: str) -> None:
    """All commands share one reader, so each dataset is given to two commands in turn."""
    break_frame, reason = BAD_DATA[bad]
    without_checksums(copy.answers)
    break_frame(copy.answers)
    for command in (COMMANDS[(place + more) % len(COMMANDS)] for more in (0, 3)):
        check_refused(reason, *commands(copy, tmp_path / "out")[command])
        assert not (tmp_path / "out").exists()


def only_one_query(folder: Path) -> None:
    edit("queries", lambda f: f[:1])(folder)
    edit("outcomes", lambda f: f.filter(pl.col("query_id") == "q0"))(folder)


def only_one_target(folder: Path) -> None:
    edit("outcomes", lambda f: f.filter(pl.col("target") == "target-1"))(folder)
    (folder / "pool.yaml").write_text("targets: [{name: target-1}]")


ONE_CLASS = {
    "layers": "no target has both classes",
    "sweep": "no target has enough right and wrong answers",
    "fit": "no target has enough right and wrong answers",
}
LEAN: dict[str, tuple[Breaking, dict[str, str]]] = {
    # commands that can work do; the others name the reason
    "NaN for missing": (edit("outcomes", first_row("correct", float("nan"))), {}),
    "no pool file": (lambda d: (d / "pool.yaml").unlink(), {}),
    "one class, all correct": (labels(1.0), ONE_CLASS),
    "one class, all wrong": (labels(0.0), ONE_CLASS),
    "soft labels, all alike": (labels(0.5), ONE_CLASS),
    "one target": (
        only_one_target,
        {"fit": "nothing to route", "evaluate": "lacks the router's targets"},
    ),
    "no label at all": (
        labels(None),
        {"layers": "label", "sweep": "label", "fit": "label", "evaluate": "label|measured"},
    ),
    "no outcomes": (
        edit("outcomes", lambda f: f.clear()),
        {"layers": "label", "sweep": "label", "fit": "label", "evaluate": "label|measured"},
    ),
    "one query": (
        only_one_query,
        {
            "split": "1 distinct prompts can't fill 2 parts",
            "layers": "1 distinct prompts can't fill",
            "sweep": "1 distinct prompts can't fill",
            "fit": "1 distinct prompts can't fill",
            "evaluate": "Give it new queries",
        },
    ),
}


JUDGES = ("describe", "layers", "sweep", "fit", "evaluate")
"""The commands that read labels."""
GIVEN_TO: dict[str, tuple[str, ...]] = {
    "NaN for missing": ("describe", "fit"),
    "no pool file": ("describe", "sweep", "fit", "evaluate"),
    "one class, all correct": JUDGES,
    "one class, all wrong": ("describe", "layers", "sweep", "fit"),
    "soft labels, all alike": ("describe", "layers", "sweep", "fit"),
    "no label at all": JUDGES,
}
"""The commands that read what a dataset lacks; all commands for the other datasets."""


@pytest.mark.parametrize(
    ("lean", "command"),
    [(lean, command) for lean in LEAN for command in GIVEN_TO.get(lean, COMMANDS)],
)
def test_dataset_with_little_in_it(copy: Job, tmp_path: Path, lean: str, command: str) -> None:
    thinning, reasons = LEAN[lean]
    without_checksums(copy.answers)
    thinning(copy.answers)
    arguments = commands(copy, tmp_path / "out")[command]
    if command in reasons:
        check_refused(reasons[command], *arguments)
        assert not (tmp_path / "out").exists()
    else:
        assert run_ok(*arguments)


BAD_SPLITS: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "no such file"),
    "empty": (b"", "not JSON"),
    "noise": (b"\xff\x00\xfe", "not JSON"),
    "deep": (b"[" * 100_000, "not JSON"),
    "list": (b"[]", "not a split"),
    "no parts": (b'{"seed": 0, "merged": {}}', "not a split"),
    "infinite seed": (b'{"seed": Infinity, "merged": {}, "parts": {}}', "not a split"),
    "unknown ids": (
        b'{"seed": 0, "merged": {}, "parts": {"train": ["nobody"], "test": ["q1"]}}',
        "lacks 1 of 1 queries, the first is 'nobody'",
    ),
    "in two parts": (
        b'{"seed": 0, "merged": {}, "parts": {"train": ["q1"], "test": ["q1"]}}',
        "puts 'q1' into more than one part",
    ),
    "no train part": (b'{"seed": 0, "merged": {}, "parts": {"test": ["q1"]}}', "no part 'train'"),
    "empty train part": (
        b'{"seed": 0, "merged": {}, "parts": {"train": [], "test": ["q1", "q2"]}}',
        "label|quer",
    ),
    "one query to learn from": (
        b'{"seed": 0, "merged": {}, "parts": {"train": ["q3"], "test": ["q1", "q2"]}}',
        "quer|prompt|label|row",
    ),
}


@pytest.mark.parametrize(("place", "bad"), [*enumerate(BAD_SPLITS)], ids=BAD_SPLITS)
def test_split_that_cannot_be_used(job: Job, tmp_path: Path, place: int, bad: str) -> None:
    """What one reader refuses is given to one command in turn; the rest is given to all."""
    commands = ("layers", "sweep", "fit")
    is_readable = bad in ("no train part", "empty train part", "one query to learn from")
    for command in commands if is_readable else (commands[place % 3],):
        refuse_split(job, tmp_path, bad, command)


def refuse_split(job: Job, tmp_path: Path, bad: str, command: str) -> None:
    content, reason = BAD_SPLITS[bad]
    path = tmp_path / "split.json"
    if content is not None:
        path.write_bytes(content)
    line = [word for word in commands(job, tmp_path / "out")[command] if word != "--test=0.15"]
    check_refused(reason, *line, "--split", path)
    assert not (tmp_path / "out").exists()


HEAD = b"target,usd_per_million_input_tokens,usd_per_million_output_tokens\n"
BAD_PRICES: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "no such file"),
    "empty": (b"", "has the columns None; needs"),
    "noise": (b"\xff\x00\xfe", "not a text file"),
    "header alone": (HEAD, "no targets"),
    "other columns": (b"a,b\n1,2\n", "needs"),
    "short row": (HEAD + b"target-1,1\n", "prices.csv:2: not a price row"),
    "NaN": (HEAD + b"target-1,nan,1\n", "prices.csv:2: not a price row: .* has the price nan"),
    "negative": (HEAD + b"target-1,-1,1\n", "prices.csv:2: not a price row"),
    "words": (HEAD + b"target-1,cheap,1\n", "prices.csv:2: not a price row"),
    "twice": (HEAD + b"target-1,1,1\ntarget-1,2,2\n", "more than once"),
    "of others": (HEAD + b"somebody,1,1\n", r"unknown targets \['somebody'\]"),
}


@pytest.mark.parametrize("bad", BAD_PRICES)
def test_prices_that_cannot_be_used(copy: Job, tmp_path: Path, bad: str) -> None:
    content, reason = BAD_PRICES[bad]
    path = tmp_path / "prices.csv"
    if content is not None:
        path.write_bytes(content)
    before = {p.name: p.read_bytes() for p in copy.router.iterdir()}
    check_refused(reason, "reprice", copy.router, "--prices", path)
    assert {p.name: p.read_bytes() for p in copy.router.iterdir()} == before
