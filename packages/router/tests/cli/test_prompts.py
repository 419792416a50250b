"""Prompts of every kind, on the command line and in a dataset."""

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from packages.router.tests.commands import CommandResult, Job, check_refused, run_ok
from prefill_router.data import write_dataset
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow

Route = Callable[..., CommandResult]
TEXTS = {
    "one letter": "ß",
    "very long": "why " * 25_000,
    "emoji": "👩‍👩‍👧‍👦 🏴󠁧󠁢󠁳󠁣󠁴󠁿 🦜",
    "right to left": "\u202e\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd",
    "combining": "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!͖̬̰̙̗̿̋ͥͥ̂ͣ̐́́͜͞",
    "control": "\x01\x02\x1b[31m\x7f\ufeff\u2028",
    "noncharacters": "\ufffe\uffff\U0010ffff",
    "markup": "[bold]not ours[/bold] {{ nor }} this {% raw %}",
    "special tokens": "[CLS] [SEP] <|im_end|> </s>",
    "white space": " \t\n ",
    "an option": "--help",
}


@pytest.mark.parametrize("name", TEXTS)
def test_request_of_any_unicode_is_routed(route: Route, name: str) -> None:
    result = route("--json", "-", stdin=TEXTS[name].encode())
    assert result.code == 0, result.err
    decision = json.loads(result.out)
    assert decision["truncated"] == (len(TEXTS[name].encode()) > 128)
    assert not result.err
    human = route("-", stdin=TEXTS[name].encode())
    assert human.code == 0
    assert TEXTS[name] not in human.out


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "the prompt has no token"),
        (b"parrot \xff", "standard input: not UTF-8 at byte 7"),
        (b"parrot " * 2_000_000, "14,000,000 characters; at most"),
    ],
)
def test_request_that_cannot_be_encoded_is_refused(job: Job, text: bytes, reason: str) -> None:
    message = check_refused(
        reason, "route", job.router, "-", "--encoder-folder", job.tiny, stdin=text
    )
    assert "parrot" not in message


@pytest.mark.parametrize(
    ("chat", "reason"),
    [
        ("", "not JSON"),
        ("parrot", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no messages"),
        ("{}", "list of messages"),
        ("7", "list of messages"),
        ("null", "list of messages"),
        ('["parrot"]', "role and a content"),
        ('[{"role": "user"}]', "role and a content"),
        ('[{"role": "user", "content": ["parrot"]}]', "role and a content"),
        ('[{"role": "user", "content": "\\ud800 parrot"}]', "lone surrogate at character 0"),
        ('[{"role": "user", "content": ""}]', "no token"),
    ],
)
def test_chat_that_is_none_is_refused(job: Job, chat: str, reason: str) -> None:
    message = check_refused(
        reason, "route", job.router, chat, "--chat", "--encoder-folder", job.tiny
    )
    assert "parrot" not in message


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--lam", "nan"), "--lam is nan"),
        (("--lam", -0.1), "--lam is -0.1"),
        (("--lam", 1.1), "--lam is 1.1"),
        (("--only", "nobody"), "unknown targets"),
        (("--only", ""), "unknown targets|names no target"),
        (("--only", "target-0,,"), "unknown targets"),
    ],
)
def test_route_options_that_make_no_sense(
    job: Job, options: tuple[object, ...], reason: str
) -> None:
    route = ("route", job.router, "Why?", "--encoder-folder", job.tiny)
    check_refused(reason, *route, *options, code=2 if reason.startswith("--") else 1)


def with_prompts(folder: Path, prompts: list[str]) -> Path:
    write_dataset(make_routing_dataset(queries=len(prompts), benchmarks=1), folder)
    table = pl.read_parquet(folder / "queries.parquet")
    table.with_columns(pl.Series("prompt", prompts)).write_parquet(folder / "queries.parquet")
    (folder / "SHA256SUMS").unlink()
    return folder


def test_dataset_of_any_unicode_is_encoded(job: Job, tmp_path: Path) -> None:
    answers = with_prompts(tmp_path / "answers", [*TEXTS.values()])
    encode = ("encode", answers, "--encoder", job.tiny, "--out", tmp_path / "states", "--json")
    summary = json.loads(run_ok(*encode))
    assert summary["encoded"] == len(TEXTS)
    assert summary["truncated"] == sum(len(text.encode()) > 128 for text in TEXTS.values())
    assert json.loads(run_ok(*encode))["encoded"] == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "query 'q1': the prompt has no token"), ("parrot " * 2_000_000, "query 'q1': .*at most")],
)
def test_prompt_that_cannot_be_encoded_is_named_by_its_query(
    job: Job, tmp_path: Path, text: str, reason: str
) -> None:
    answers = with_prompts(tmp_path / "answers", ["fine", text, "fine too"])
    encode = ("encode", answers, "--encoder", job.tiny, "--out", tmp_path / "states")
    assert "parrot" not in check_refused(reason, *encode)
    assert not (tmp_path / "states").exists()


def test_many_queries_are_described_and_split(tmp_path: Path) -> None:
    write_dataset(make_routing_dataset(queries=4_000), tmp_path / "answers")
    assert "4,000 queries" in run_ok("describe", tmp_path / "answers")
    summary = json.loads(run_ok("split", tmp_path / "answers", "--out", tmp_path / "s", "--json"))
    assert sum(summary["parts"].values()) == 4_000


def test_names_with_markup_are_printed_as_they_are(tmp_path: Path) -> None:
    write_dataset(make_routing_dataset(queries=30), tmp_path / "answers")
    for name in ("queries", "outcomes"):
        path = tmp_path / "answers" / f"{name}.parquet"
        table = pl.read_parquet(path)
        odd = [c for c in ("target", "benchmark", "domain") if c in table.columns]
        table.with_columns(pl.format("[red]{}[/red] [/x]", c).alias(c) for c in odd).write_parquet(
            path
        )
    for name in ("pool.yaml", "SHA256SUMS"):
        (tmp_path / "answers" / name).unlink()
    output = run_ok("describe", tmp_path / "answers", "--by", "domain")
    assert "[red]target-0[/red] [/x]" in output
