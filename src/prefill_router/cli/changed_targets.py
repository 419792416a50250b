"""`prefill-router add-target` and `remove-target`: a router's targets change without a new fit."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router.cli import options as opt
from prefill_router.cli.application import app, counted, dollars, err, out, print_json
from prefill_router.cli.usage import UsageError
from prefill_router.errors import ConfigError
from prefill_router.progress import BarProgress
from prefill_router.remote import PathOrUrl

if TYPE_CHECKING:
    from prefill_router.data import RoutingDataset
    from prefill_router.fitting import Ask
    from prefill_router.harness import TargetQuestions
    from prefill_router.targets import Pool

TargetName = Annotated[str, typer.Argument(metavar="NAME", help="The target's name.")]


@app.command("add-target")
def add_target(
    folder: opt.RouterFolder,
    name: TargetName,
    data: opt.Data,
    to: opt.RouterOut,
    labels: Annotated[int, typer.Option(help="How many questions to choose and to ask.")] = 100,
    pool: Annotated[
        Path | None, typer.Option(help="A pool.yaml that says who serves the target.")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="The tasks of the dataset, as for collect.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="The folder of the calls: a new one, or one to resume.")
    ] = None,
    max_cost: Annotated[
        float | None,
        typer.Option(help="US dollars that the calls may cost, earlier ones included."),
    ] = None,
    judge: Annotated[
        Path | None, typer.Option(help="A pool.yaml of the one target that judges.")
    ] = None,
    judge_max_cost: Annotated[
        float | None, typer.Option(help="Dollars that judging may cost in all.")
    ] = None,
    answers: Annotated[
        PathOrUrl | None,
        typer.Option(
            help="A dataset with answers of the target; nobody is asked.", parser=opt.path_or_url
        ),
    ] = None,
    caution: Annotated[
        float, typer.Option(help="Standard deviations by which its log-odds are lowered.")
    ] = 0.5,
    store: opt.Stores = None,
    encoder_folder: opt.EncoderFolders = None,
    overwrite: opt.Overwrite = False,
    as_json: opt.AsJson = False,
) -> None:
    """Add a target to a router from few labels, whose questions are chosen.

    The questions are train queries of the dataset that the router was fitted on, and are asked
    within --max-cost; interrupted, the same command goes on from there. The numbers of the other
    targets stay as they are.

    Example: prefill-router add-target router new --data answers --pool pool.yaml --tasks
    tasks.jsonl --run run --max-cost 2 --out wider
    """
    from prefill_router.data import read_dataset
    from prefill_router.files import default_cache
    from prefill_router.fitting import add_target as fit_target, known_answers

    _check_free(to, overwrite=overwrite)
    questions: TargetQuestions | None = None
    ask: Ask
    if answers is not None and pool is None:
        scored = read_dataset(answers)
        new, ask = scored.pool.select([name]), known_answers(scored, name)
        among: Collection[str] = _answered(scored, name)
    elif answers is None and pool is not None and tasks is not None and run is not None:
        new, questions = _questions(name, pool, tasks, run, max_cost, judge, judge_max_cost)
        ask, among = questions, questions.ids
    else:
        raise UsageError("give --answers, or --pool with --tasks and --run")
    router, known = opt.load_router(folder, encoder_folder), read_dataset(data)
    found = fit_target(
        router,
        new,
        known,
        ask,
        labels=labels,
        stores=opt.open_stores(store),
        among=among,
        caution=caution,
        cache=default_cache(),
        progress=BarProgress(console=err),
    )
    found.router.save(to)
    spent = None if questions is None or questions.summary is None else questions.summary.spent
    if as_json:
        told = {"router": str(to), "asked": list(found.asked), "answered": found.answered}
        print_json({**told, "spent": spent, "targets": list(found.router.pool.names)})
        return
    cost = "" if spent is None else f", {dollars(spent)}"
    out.say(f"{to}: {name} joined {counted(len(router.pool), 'target')}")
    out.say(f"  {counted(len(found.asked), 'question')} chosen, {found.answered:,} answered{cost}")
    if found.answered < labels:
        err.say(f"{labels - found.answered:,} labels are missing; its uncertainty is larger for it")


@app.command("remove-target")
def remove_target(
    folder: opt.RouterFolder,
    name: TargetName,
    to: opt.RouterOut,
    overwrite: opt.Overwrite = False,
    as_json: opt.AsJson = False,
) -> None:
    """Remove a target from a router without fitting it again.

    The numbers of the other targets stay as they are.

    Example: prefill-router remove-target router large --out smaller
    """
    from prefill_router.fitting import remove_target as without
    from prefill_router.router import Router

    _check_free(to, overwrite=overwrite)
    left: Router = without(Router.load(folder), name)
    left.save(to)
    if as_json:
        print_json({"router": str(to), "targets": list(left.pool.names)})
        return
    out.say(f"{to}: {', '.join(left.pool.names)}")


def _check_free(to: PathOrUrl, *, overwrite: bool) -> None:
    """Check that nothing would be lost, before anything is asked."""
    from prefill_router.router import check_replaceable, is_router

    check_replaceable(to)
    if is_router(to) and not overwrite:
        raise ConfigError(f"{to} holds a router; name another folder, or pass --overwrite")


def _answered(scored: "RoutingDataset", name: str) -> list[str]:
    """The ids of the queries that the target has a label for."""
    import numpy as np

    correct = scored.select(targets=[name]).correct[:, 0]
    pairs = zip(scored.query_ids, np.isnan(correct).tolist(), strict=True)
    return [one for one, missing in pairs if not missing]


def _questions(
    name: str,
    pool: Path,
    tasks: str,
    run: Path,
    max_cost: float | None,
    judge: Path | None,
    judge_max_cost: float | None,
) -> "tuple[Pool, TargetQuestions]":
    from prefill_router.client import Upstream
    from prefill_router.harness import TargetQuestions
    from prefill_router.harness.benchmarks import load_tasks
    from prefill_router.harness.collection import CollectOptions
    from prefill_router.harness.grading import Settings
    from prefill_router.targets import read_pool

    new = read_pool(pool).select([name])
    judges = None if judge is None else read_pool(judge)
    return new, TargetQuestions(
        run,
        new,
        {task.query.id: task for task in load_tasks(tasks)},
        asker=lambda: Upstream(new),
        options=CollectOptions(limit=max_cost),
        settings=Settings(judge=judges, judge_limit=judge_max_cost),
        progress=BarProgress(console=err),
    )
