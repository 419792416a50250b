"""What docs/guides/data.md shows can be run."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prefill_router.cli import app
from prefill_router.data import write_dataset
from prefill_router.testing import make_routing_dataset
from tests.importers.samples import (
    TABLES,
    nvidia_rows,
    routellm_rows,
    routerbench_rows,
    write_csv,
    write_jsonl,
    write_mmlu_pro,
    write_routerarena,
    write_tar,
    write_tree,
)

pytestmark = pytest.mark.slow

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "data.md"


def blocks() -> Iterator[tuple[str, str]]:
    yield from re.findall(r"^```(\w+)\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)


def scores_of(run: int) -> list[dict[str, object]]:
    return [{"prompt": "?", "target": name, "correct": run} for name in ("small", "large")]


def write_sources(folder: Path) -> None:
    """The files that the guide names."""
    tables = [text for language, text in blocks() if language == "csv"]
    for name, text in zip(("answers.csv", "prices.csv"), tables, strict=True):
        (folder / name).write_text(text)
    log = [{"question": str(q), "llm": llm, "score": q / 4} for q in range(4) for llm in ("x", "y")]
    write_jsonl(folder / "log.jsonl", log)
    judged = [{"prompt": str(q), "target": "xy"[q % 2], "correct": 1 + q % 5} for q in range(8)]
    write_csv(folder / "judged.csv", judged)
    write_csv(folder / "sampled.csv", [*scores_of(0), *scores_of(1)])
    for run in ("first", "second"):
        write_dataset(make_routing_dataset(queries=5, seed=1), folder / run)
    scores = [
        {"prompt": str(q), "small": q % 2, "large": 1, "small_usd": 0.1, "large_usd": 1}
        for q in range(4)
    ]
    TABLES["answers.parquet"](folder / "scores.parquet", scores)
    write_tar(folder)
    (folder / "results.tar.gz").rename(folder / "bench.tar.gz")
    write_tree(folder)
    write_csv(folder / "routerbench_0shot.csv", routerbench_rows())
    write_csv(folder / "gsm8k_responses.csv", routellm_rows())
    for name in ("train_v1.csv", "test_v1.csv"):
        write_csv(folder / name, nvidia_rows())
    for name, write in (("eval_results", None), ("predictions", write_routerarena)):
        (folder / name).mkdir()
        if write is None:
            write_mmlu_pro(folder / name, zipped=True)
        else:
            write(folder / name)
    price = {"input_token_price_per_million": 1, "output_token_price_per_million": 2}
    (folder / "cost.json").write_text(json.dumps({"beta": price}))


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sources(tmp_path)
    monkeypatch.chdir(tmp_path)
    ran = 0
    for language, text in blocks():
        if language == "python":
            exec(compile(text, str(GUIDE), "exec"), {})
            ran += 1
        for line in text.splitlines() if language == "console" else ():
            program, *arguments = shlex.split(line.removeprefix("$ "))
            assert program == "prefill-router"
            ended = CliRunner().invoke(app, arguments)
            assert ended.exit_code == 0, (line, ended.output, ended.exception)
            ran += 1
    assert ran >= 15


def test_the_pool_of_the_guide_is_a_pool(tmp_path: Path) -> None:
    from prefill_router.targets import read_pool

    (text,) = [text for language, text in blocks() if language == "yaml"]
    (tmp_path / "pool.yaml").write_text(text)
    assert read_pool(tmp_path / "pool.yaml").names == ("small", "large")
