"""`prefill-router minipool`: tiny language models on loopback, and questions for them."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from prefill_router.cli import options as opt
from prefill_router.cli.application import err, out, print_json
from prefill_router.cli.usage import reading_words
from prefill_router.errors import ConfigError
from prefill_router.files import check_place

_LOOPBACK = "127.0.0.1"
_minipool = typer.Typer()


@_minipool.command()
def serve(
    port: Annotated[int, typer.Option(help="The port to listen on; 0 picks a free one.")] = 8123,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = _LOOPBACK,
    only: Annotated[str | None, typer.Option(help="Targets, separated by commas.")] = None,
    write_pool: Annotated[
        Path | None, typer.Option(help="Once it serves, write the pool file for collect here.")
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
    max_batch: Annotated[int, typer.Option(help="Most answers generated at once.")] = 64,
    threads: Annotated[int, typer.Option(help="Processor threads to generate with.")] = 1,
) -> None:
    """Serve the tiny pool over the OpenAI protocol until it is interrupted.

    It listens only on this machine, unless --host says otherwise.

    Example: prefill-router minipool serve --write-pool pool.yaml
    """
    import torch

    from prefill_router import targets
    from prefill_router.client import is_loopback
    from prefill_router.minipool.server import (
        Faults,
        parse_rule,
        read_faults,
        serve_pool,
        served_pool,
    )

    if write_pool is not None:
        check_place(write_pool)
    names = None if only is None else [name.strip() for name in only.split(",")]
    read = Faults() if faults is None else read_faults(faults)
    rules = (*read.rules, *(parse_rule(text) for text in fault or ()))
    injected = Faults(rules=rules, seed=read.seed, personas=read.personas)
    key = None if api_key_env is None else _key(api_key_env)
    if not is_loopback(host):
        err.say(f"warning: whoever reaches {host} can use it", style="yellow")
    torch.set_num_threads(threads)
    serving = serve_pool(
        names, faults=injected, port=port, host=host, api_key=key, max_batch=max_batch
    )
    with _ended_by_signal() as ended, serving as server:
        pool = served_pool(server, names=names, api_key_env=api_key_env)
        if write_pool is not None:
            targets.write_pool(pool, write_pool)
        out.say(f"serving {', '.join(pool.names)} at {server.base_url}")
        _wait(ended)
    stats = server.stats()
    out.print(
        f"{stats.requests:,} requests, {stats.answers:,} answers, "
        f"{stats.generated_tokens:,} tokens in {stats.busy_seconds:,.1f} s of work"
    )


@_minipool.command()
def tasks(
    to: Annotated[Path, typer.Option("--out", help="The file to write, JSON Lines.")],
    count: Annotated[int, typer.Option(help="The number of tasks.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the questions.")] = 0,
    domains: Annotated[
        str | None, typer.Option(help="Families of tasks, separated by commas.")
    ] = None,
    overwrite: opt.Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
) -> None:
    """Make questions that none of the tiny models was trained on, each with its answer.

    Example: prefill-router minipool tasks --count 2000 --out tasks.jsonl
    """
    from prefill_router.data import Query
    from prefill_router.harness import Task
    from prefill_router.harness.benchmarks import write_tasks
    from prefill_router.minipool import make_tasks

    names = None if domains is None else [name.strip() for name in domains.split(",")]
    with reading_words():
        asked = make_tasks(count, seed=seed, domains=names)
    check_place(to)
    made = [
        Task(
            query=Query(task.id, task.prompt, domain=task.domain, benchmark="minipool"),
            grader="exact",
            answer=(task.answer,),
        )
        for task in asked
    ]
    with opt.replacing(to, overwrite=overwrite) as temporary:
        write_tasks(made, temporary)
    families = sorted({task.query.domain or "" for task in made})
    if as_json:
        print_json({"tasks": len(made), "families": families, "file": str(to)})
        return
    out.say(f"{len(made):,} tasks of {len(families)} families: {to}")


def _key(name: str) -> str:
    key = os.environ.get(name)
    if not key:
        raise ConfigError(f"the environment variable {name} holds no key; set it")
    return key


@contextmanager
def _ended_by_signal() -> Iterator[threading.Event]:
    """Yield an event that is set when the process is asked to end."""
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        ended.set()

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield ended
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait(ended: threading.Event) -> None:
    """Wait until the process is asked to end, or is interrupted."""
    try:
        ended.wait()
    except KeyboardInterrupt:
        return
