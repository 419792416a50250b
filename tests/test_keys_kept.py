"""Keys that a base_url has, or that a provider quotes, are never written or printed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packages.router.tests.commands import run
from prefill_router.endpoints import Reply, Usage
from prefill_router.endpoints.redaction import REDACTED, Redaction
from prefill_router.targets import Pool, Provider, Target, write_pool
from prefill_router_minipool.server import ScriptedModel, Server, serve

KEY, QUERY_KEY = "sk-hush-0123456789", "hush-too-9876543210"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    text = f"you said {KEY}, by way of {QUERY_KEY}; the answer is 4"
    with serve([ScriptedModel("a", lambda _: text), ScriptedModel("b", lambda _: text)]) as running:
        yield running


def _read_all(folder: Path) -> bytes:
    contents = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert contents
    return b"".join(contents)


def test_a_run_and_its_dataset_keep_no_key(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_KEY", KEY)
    url = f"{server.base_url}?key={QUERY_KEY}"
    lab = Provider(name="lab", base_url=url, api_key_env="LAB_KEY", dialect="vllm")
    targets = (Target(name="a", provider="lab"), Target(name="b", base_url=url))
    write_pool(Pool(targets, providers=(lab,)), tmp_path / "pool.yaml")
    task = {"id": "q", "prompt": "What is 2 + 2?", "grader": "exact", "answer": ["4"]}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(task) + "\n")
    out, answers = tmp_path / "out" / "run", tmp_path / "out" / "answers"
    arguments = ("--pool", tmp_path / "pool.yaml", "--tasks", tmp_path / "tasks.jsonl")
    results = [run("collect", *arguments, "--out", out), run("grade", out, "--out", answers)]
    assert [done.code for done in results] == [0, 0], results
    assert all(key not in done.out + done.err for done in results for key in (KEY, QUERY_KEY))
    contents = _read_all(tmp_path / "out")
    assert REDACTED.encode() in contents
    assert b"the answer is 4" in contents
    assert KEY.encode() not in contents
    assert QUERY_KEY.encode() not in contents


def test_every_part_of_a_reply_is_looked_at() -> None:
    hidden: Any = {"calls": [{"arguments": json.dumps({"key": KEY}), KEY: 1}], "n": 2.5, "no": None}
    reply = Reply(
        text=f"{KEY}!",
        reasoning=f"it is {KEY}",
        finish_reason=KEY,
        served_by=f"m-{KEY}",
        usage=Usage(output_tokens=3, reported={"of": KEY, "output_tokens": 3}),
        response=hidden,
    )
    clean = Redaction.of_keys([KEY]).redact_reply(reply)
    assert KEY not in repr(clean)
    assert (clean.text, clean.usage.output_tokens) == (f"{REDACTED}!", 3)
    assert clean.response["n"] == 2.5


def test_what_is_no_secret_does_not_garble_answers() -> None:
    reply = Reply(text="The token is none, EMPTY or dummy, sk-abcdefghijklmnopqrstuvwxyz.")
    assert (
        Redaction.of_keys(["none", "EMPTY", "dummy", "token", "sk-1"]).redact_reply(reply) == reply
    )
