"""What a contributor runs after adding one of each; prints what every command said, as JSON.

It runs in a process of its own, on a copy of the package with the additions.
"""

import json
import sys
from pathlib import Path

import yaml

from tests.commands import succeeded

QUERIES = 120
RECIPE = {
    "features": "prompt_length",
    "predictor": "half",
    "calibration": "rates",
    "policy": "first_target",
}
PRICES = "target,usd_per_million_input_tokens,usd_per_million_output_tokens\nbig,2,8\nsmall,1,4\n"


def answers(folder: Path) -> Path:
    """Answers of two targets, in the new format."""
    rows = [
        f"q{i}|{name}|{int(i % (3 + k) > 0)}|{0.001 * (2 - k)}|Question {i}: {'why ' * (i % 7)}?"
        for i in range(QUERIES)
        for k, name in enumerate(("big", "small"))
    ]
    (folder / "answers.bars").write_text("\n".join(rows))
    (folder / "prices.csv").write_text(PRICES)
    return folder / "answers.bars"


def serving(folder: Path) -> list[object]:
    """The files of a gateway, with the new setting and the new dialect."""
    provider = {
        "name": "near",
        "base_url": "http://127.0.0.1:1/v1",
        "dialect": "whispered",
    }
    targets = [{"name": name, "provider": "near"} for name in ("big", "small")]
    pool = {"providers": [provider], "targets": targets}
    (folder / "pool.yaml").write_text(yaml.safe_dump(pool))
    (folder / "gateway.yaml").write_text(yaml.safe_dump({"listen": {"greeting": "Good morning"}}))
    return ["--pool", folder / "pool.yaml", "--config", folder / "gateway.yaml"]


def requested() -> dict[str, object]:
    """What the new dialect asks a target with."""
    from prefill_router.client.client import request_parameters
    from prefill_router.targets import Target

    return request_parameters(Target(name="big"), "whispered")  # type: ignore[arg-type]


def gauges() -> str:
    """What Prometheus is told."""
    from prefill_router.gateway.telemetry.metrics import Metrics

    return Metrics(()).render()[0].decode()


def graded(folder: Path) -> dict[str, str]:
    """What the commands say of tasks of the new benchmark, and of answers to them."""
    from prefill_router.harness.benchmarks import load_tasks
    from tests.harness.grading.graded_runs import run_of

    (folder / "riddles").mkdir()
    (folder / "riddles" / "all.txt").write_text("one|Which sea is it?|red\ntwo|Who?|you")
    spec, tasks = f"riddles={folder / 'riddles'},level=easy", folder / "tasks.jsonl"
    said = {
        "tasks --help": succeeded("tasks", "--help"),
        "tasks": succeeded("tasks", spec, "--out", tasks),
        "tasks.jsonl": tasks.read_text(),
        "grade --help": succeeded("grade", "--help"),
    }
    texts = {"small": "bed", "large": "blue"}
    run = run_of(folder / "run", dict.fromkeys(load_tasks(str(tasks)), texts))
    table = succeeded("grade", run, "--out", folder / "graded")
    return {**said, "grade": " ".join(table.split())}


def main(folder: Path) -> None:
    """Run every command that shows an addition."""
    data, one, other = (folder / name for name in ("data", "one", "other"))
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    said = {
        "hello": succeeded("hello"),
        "help": succeeded("--help"),
        "import --help": succeeded("import", "--help"),
        "import": succeeded(
            *("import", "bars", answers(folder), "--out", data),
            *("--prices", folder / "prices.csv"),
        ),
        "describe": succeeded("describe", data),
        "split": succeeded("split", data, "--calibration", "--out", folder / "split.json"),
    }
    fit = ("--recipe", folder / "recipe.yaml", "--split", folder / "split.json")
    said["fit"] = succeeded("fit", data, *fit, "--out", one)
    said["fit again"] = succeeded("fit", data, *fit, "--policy", "lambda", "--out", other)
    succeeded("show", one)  # which also checks what was saved
    said["README.md"] = (one / "README.md").read_text()
    said["route"] = succeeded("route", one, "Why?")
    judged = ("--data", data, "--resamples", 20)
    said["evaluate"] = succeeded("evaluate", one, *judged, "--out", folder / "report")
    said["metrics.json"] = (folder / "report" / "metrics.json").read_text()
    said["index.html"] = (folder / "report" / "index.html").read_text()
    said["paired"] = succeeded("paired", one, other, *judged)
    said["serve"] = succeeded("serve", one, *serving(folder), "--check")
    said["request"] = json.dumps(requested())
    said["gauges"] = gauges()
    said.update(graded(folder))
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
