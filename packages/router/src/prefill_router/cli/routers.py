"""Routers and their versions: the commands that show them, and change their prices or targets.

`show` prints a router's card, and `reprice` gives the same router other prices. `versions`,
`promote` and `rollback` are about which version of a router serves. A gateway that serves these
versions (`serve --versions`) takes each step within seconds. `add-target` and `remove-target`
change a router's targets without fitting it again.
"""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from prefill_router.cli import options as opt
from prefill_router.cli.application import app, err, format_count, out, print_json
from prefill_router.cli.commands import UsageError, usage_errors
from prefill_router.errors import ConfigError
from prefill_router.files import default_cache, file_digest
from prefill_router.money import dollars, list_price
from prefill_router.options import NOT_NEGATIVE, SHARE_BETWEEN
from prefill_router.progress import BarProgress
from prefill_router.remote import PathOrUrl, reading

if TYPE_CHECKING:
    from prefill_router.data import RoutingDataset
    from prefill_router.fitting import AddedTarget, Ask, Questions
    from prefill_router.router import Router, VersionState
    from prefill_router.targets import Pool, Target


@app.command()
def show(
    folder: opt.RouterFolder,
    curves: Annotated[
        Path | None, typer.Option(help="A folder to draw the training curves into.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the router's record as JSON.")
    ] = False,
) -> None:
    """Check a router's folder and show its card.

    Example: prefill-router show router
    """
    from prefill_router.router import Router

    router = Router.load(folder)
    if curves is not None:
        from prefill_router.predictors import TrainingCurves, write_curves

        written = write_curves(TrainingCurves.from_dict(router.record.training), curves)
        err.print(f"training curves: {', '.join(map(str, written))}", markup=False)
    if as_json:
        record = router.record.model_dump(mode="json", exclude={"training"})
        features = router.features.to_dict()
        shrinkage = None if router.shrinkage is None else router.shrinkage.to_dict()
        pool = router.pool.public().to_dict()
        output = None if router.output is None else router.output.to_dict()
        parts = {"features": features, "shrinkage": shrinkage, "output": output}
        print_json({"pool": pool, **parts, **record})
        return
    with reading(folder, ["README.md"]) as local:
        text = (local / "README.md").read_text(encoding="utf-8")
    out.print(Markdown(text.split("---\n", 2)[-1]))
    _show_endpoints(router)


def _show_endpoints(router: "Router") -> None:
    """Print the endpoints in the folder; they aren't read from the card, which anyone can edit."""
    from prefill_router.encoders import KEY, Address, EncoderName

    pool = router.pool.public()
    served = [t.name for t in pool if t.provider is not None or t.base_url is not None]
    rows = [(name, p.base_url, p.api_key_env) for name in served if (p := pool.provider_of(name))]
    for provenance in router.features.provenances:
        name = EncoderName.parse(provenance.encoder)
        if name.is_remote:
            rows.append(("the encoder", Address.parse(name.place).base_url, KEY))
    if not rows:
        return
    out.print("Endpoints that the router names. None is called unless you name it yourself:")
    table = Table(box=None, pad_edge=False)
    for title in ("target", "address", "variable of its key"):
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell or "-") for cell in row))
    out.print(table)


@app.command()
def reprice(
    folder: opt.RouterFolder,
    prices: Annotated[Path, typer.Option(help="A pool.yaml or a prices.csv.")],
    date: Annotated[
        str | None, typer.Option(help="The day of the prices, such as 2026-11-20.")
    ] = None,
    to: Annotated[
        PathOrUrl | None,
        typer.Option(
            "--out", help="Write here, and leave ROUTER as it is.", parser=opt.path_or_url
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the new prices as JSON.")] = False,
    overwrite: opt.Overwrite = False,
) -> None:
    """Change a router's prices without fitting it again.

    A target that the file doesn't name keeps its prices. An unknown name is refused. The name of a
    model with efforts stands for all of its efforts.

    Example: prefill-router reprice router --prices prices.csv --date 2026-11-20
    """
    from prefill_router.router import Router
    from prefill_router.targets import day_of, read_pool

    if date is not None:
        with usage_errors():
            day_of(date)
    router = Router.load(folder)
    listed = read_pool(prices)
    new = _list_prices(listed, router.pool)
    if not new:
        raise ConfigError(f"{prices} has no prices; give an input and an output price of a target")
    unchanged = [name for name in router.pool.names if name not in new]
    try:
        router.pool.indices(router.pool.with_efforts(listed.names))
        pool = router.pool.with_prices(new, date=date or listed.prices_date)
    except ConfigError as error:
        raise ConfigError(f"{prices}: {error}") from None
    repriced = router.with_pool(pool)
    if to is not None and not overwrite:
        _check_same(to, folder)
    repriced.save(to or folder)
    without_effect = [name for name in repriced.costs.recorded_targets if name in new]
    if as_json:
        print_json(
            {
                "router": str(to or folder),
                "prices_date": pool.prices_date,
                "targets": {t.name: [t.input_price, t.output_price] for t in pool},
                "kept": unchanged,
                "without_effect": without_effect,
            }
        )
        return
    out.say(_price_changes(router.pool, pool))
    _note_other_prices(without_effect, unchanged)


def _note_other_prices(without_effect: list[str], unchanged: list[str]) -> None:
    """Note the targets whose costs stay the same although they, or others, were repriced."""
    if without_effect:
        err.say(
            "without effect, since output token counts are unknown and the median recorded cost is "
            f"used: {', '.join(without_effect)}"
        )
    if unchanged:
        err.say(f"prices kept, since the file doesn't name them: {', '.join(unchanged)}")


def _list_prices(listed: "Pool", pool: "Pool") -> dict[str, tuple[float, float]]:
    """The input and output price of each target that a file names, by itself or by its model."""
    return {
        name: (target.input_price, target.output_price)
        for target in listed
        if target.input_price is not None and target.output_price is not None
        for name in pool.with_efforts([target.name])
    }


def _check_same(to: PathOrUrl, folder: PathOrUrl) -> None:
    """Check that the folder to write is free or holds this very router.

    Raises:
        ConfigError: It holds something else.
    """
    from prefill_router.router import check_replaceable, is_router

    check_replaceable(to)
    if is_router(to) and _digest_weights(to) != _digest_weights(folder):
        raise ConfigError(
            f"{to} has another router than this one; name another folder, or pass --overwrite"
        )


def _digest_weights(folder: PathOrUrl) -> str | None:
    """The digest of a router's arrays; None where they are missing."""
    with reading(folder, ["weights.safetensors"]) as local:
        path = local / "weights.safetensors"
        return file_digest(path) if path.is_file() else None


def _format_prices(target: "Target") -> str:
    if target.input_price is None or target.output_price is None:
        return "unknown"
    return f"{list_price(target.input_price)} in, {list_price(target.output_price)} out"


def _price_changes(before: "Pool", after: "Pool") -> str:
    lines = [
        f"{old.name}: {_format_prices(old)} -> {_format_prices(new)}"
        for old, new in zip(before, after, strict=True)
        if old != new
    ]
    return "\n".join(lines) or "no price differs"


Registry = Annotated[
    str, typer.Argument(help="The folder or URL of the versions.", metavar="VERSIONS")
]


_versions = typer.Typer()


@_versions.command("list")
def list_versions(
    registry: Registry,
    steps: Annotated[
        int,
        NOT_NEGATIVE,
        typer.Option(help="How many of the latest steps to show, with their evidence."),
    ] = 5,
    as_json: opt.AsJson = False,
) -> None:
    """List the versions of a router, and the steps to the one that serves.

    Example: prefill-router versions list versions --steps 20
    """
    from prefill_router.router import VersionRegistry

    state = VersionRegistry.at(registry, create=False).state()
    if as_json:
        print_json(state.model_dump(mode="json"))
        return
    _show_versions(state)
    for step in state.steps[max(0, len(state.steps) - steps) :]:
        share = f" with {100 * step.share:g} % of conversations" if step.share else ""
        out.say(f"{step.at}  {step.version or 'default target'}: {step.event}{share}, by {step.by}")
        why = step.evidence.get("why")
        for name, value in ([("why", why)] if why else []) + step.figures():
            out.say(f"    {name}: {value}")


@_versions.command("add")
def add_version(
    registry: Registry,
    folder: Annotated[
        PathOrUrl,
        typer.Argument(metavar="ROUTER", help="The router's folder.", parser=opt.path_or_url),
    ],
    as_json: opt.AsJson = False,
) -> None:
    """Keep a router as the next version, which doesn't serve yet.

    Example: prefill-router versions add versions router
    """
    from prefill_router.router import VersionRegistry

    router = opt.load_router(folder, None)
    name = VersionRegistry.at(registry).add(router, {}, by="operator")
    if as_json:
        print_json({"version": name})
        return
    out.say(f"version {name}: {folder}")
    out.say(f"to let it serve: prefill-router versions promote {registry} {name}")


@_versions.command("promote")
def promote(
    registry: Registry,
    name: Annotated[
        str | None, typer.Argument(metavar="VERSION", help="The version; by default the candidate.")
    ] = None,
    share: Annotated[
        float | None,
        SHARE_BETWEEN,
        typer.Option(help="Let it decide on this share of the conversations, not on all."),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Let a version serve, at once or on a share of the conversations, without a test.

    Example: prefill-router versions promote versions 0002 --share 0.1
    """
    from prefill_router.router import VersionRegistry

    versions = VersionRegistry.at(registry, create=False)
    if share is None:
        state = versions.promote(name, by="operator")
    else:
        if name is not None and name != versions.state().candidate:
            versions.shadow(name, by="operator")
        state = versions.widen(share, by="operator")
    _show_step(state, as_json=as_json)


@_versions.command("rollback")
def rollback(
    registry: Registry,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="VERSION", help="The version; by default the one that served before."
        ),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Go back to what served before: a version, or the default target.

    Example: prefill-router versions rollback versions
    """
    from prefill_router.router import VersionRegistry

    _show_step(VersionRegistry.at(registry, create=False).roll_back(name), as_json=as_json)


def _show_step(state: "VersionState", *, as_json: bool) -> None:
    if as_json:
        print_json(
            state.model_dump(mode="json", include={"current", "candidate", "stage", "share"})
        )
    elif state.candidate is not None:
        out.say(
            f"{state.candidate} decides on {100 * state.share:g} % of the conversations; "
            f"{state.current or 'the default target'} serves the rest"
        )
    else:
        out.say(f"{state.current or 'the default target'} serves")


def _show_versions(state: "VersionState") -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("version", "added", "from", "labels", "verdict", ""):
        table.add_column(title, justify="right" if title == "labels" else "left")
    for version in state.versions:
        role = {state.candidate: f"candidate ({state.stage})", state.current: "serves"}
        table.add_row(
            version.name,
            version.created,
            version.parent or "-",
            f"{sum(version.labels.values()):,}" if version.labels else "-",
            "-" if version.verdict is None else str(version.verdict["word"]),
            role.get(version.name, ""),
        )
    if state.versions:
        out.print(table)
    if state.current is None:
        out.say("no version serves: requests go to the default target")


TargetName = Annotated[str, typer.Argument(metavar="NAME", help="The target's name.")]


@app.command("add-target")
def add_target(
    folder: opt.RouterFolder,
    name: TargetName,
    data: opt.Data,
    to: opt.RouterOut,
    labels: Annotated[
        int, NOT_NEGATIVE, typer.Option(help="How many questions to choose and to ask.")
    ] = 100,
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
        NOT_NEGATIVE,
        typer.Option(help="US dollars that the calls may cost, earlier ones included."),
    ] = None,
    judge: Annotated[
        Path | None, typer.Option(help="A pool.yaml of the one target that judges.")
    ] = None,
    judge_max_cost: Annotated[
        float | None, NOT_NEGATIVE, typer.Option(help="Dollars that judging may cost in all.")
    ] = None,
    answers: Annotated[
        PathOrUrl | None,
        typer.Option(
            help="A dataset with answers of the target; nobody is asked.", parser=opt.path_or_url
        ),
    ] = None,
    caution: Annotated[
        float,
        NOT_NEGATIVE,
        typer.Option(help="Standard deviations by which its log-odds are lowered."),
    ] = 0.5,
    store: opt.Stores = None,
    encoder_folder: opt.EncoderFolders = None,
    overwrite: opt.Overwrite = False,
    as_json: opt.AsJson = False,
) -> None:
    """Add a target to a router from few labels, by asking it chosen questions.

    The questions are train queries of the dataset that the router was fitted on. The calls cost at
    most --max-cost. After an interruption the same command goes on from there. The predictions for
    the other targets stay as they are.

    Example: prefill-router add-target router new --data answers --pool pool.yaml --tasks
    tasks.jsonl --run run --max-cost 2 --out wider
    """
    from prefill_router.data import read_dataset
    from prefill_router.fitting import add_target as fit_target, known_answers

    _check_free(to, overwrite=overwrite)
    questions: Questions | None = None
    ask: Ask
    if answers is not None and pool is None:
        scored = read_dataset(answers)
        new, ask = scored.pool.select([name]), known_answers(scored, name)
        candidates: Collection[str] = _list_answered(scored, name)
    elif answers is None and pool is not None and tasks is not None and run is not None:
        new, questions = _make_questions(name, pool, tasks, run, max_cost, judge, judge_max_cost)
        ask, candidates = questions, questions.ids
    else:
        raise UsageError("give --answers, or --pool with --tasks and --run")
    router, dataset = opt.load_router(folder, encoder_folder), read_dataset(data)
    added = fit_target(
        router,
        new,
        dataset,
        ask,
        labels=labels,
        stores=opt.open_stores(store),
        candidates=candidates,
        caution=caution,
        cache=default_cache(),
        progress=BarProgress(console=err),
    )
    opt.save_router(added.router, to)
    spent = None if questions is None else questions.spent
    if as_json:
        facts = {"router": str(to), "asked": list(added.questions), "answered": added.answered}
        print_json({**facts, "spent": spent, "targets": list(added.router.pool.names)})
        return
    out.say(f"{to}: {name} joined {format_count(len(router.pool), 'target')}")
    _show_answers(added, labels, spent)


def _show_answers(added: "AddedTarget", labels: int, spent: float | None) -> None:
    """Show how many of the wanted labels there are, and what they cost."""
    cost = "" if spent is None else f", {dollars(spent)}"
    out.say(
        f"  {format_count(len(added.questions), 'question')} chosen, {added.answered:,} "
        f"answered{cost}"
    )
    if added.answered < labels:
        err.say(f"{labels - added.answered:,} labels are missing; its uncertainty is larger for it")


@app.command("remove-target")
def remove_target(
    folder: opt.RouterFolder,
    name: TargetName,
    to: opt.RouterOut,
    overwrite: opt.Overwrite = False,
    as_json: opt.AsJson = False,
) -> None:
    """Remove a target from a router without fitting it again.

    The predictions for the other targets stay as they are.

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


def _list_answered(scored: "RoutingDataset", name: str) -> list[str]:
    """The ids of the queries that the target has a label for."""
    import numpy as np

    correct = scored.select(targets=[name]).correct[:, 0]
    pairs = zip(scored.query_ids, np.isnan(correct).tolist(), strict=True)
    return [query_id for query_id, missing in pairs if not missing]


def _make_questions(
    name: str,
    pool: Path,
    tasks: str,
    run: Path,
    max_cost: float | None,
    judge: Path | None,
    judge_max_cost: float | None,
) -> "tuple[Pool, Questions]":
    from prefill_router.plugins import load_plugin
    from prefill_router.targets import read_pool

    new = read_pool(pool).select([name])
    ask: Questions = load_plugin("prefill_router.questions", "tasks")(
        run,
        new,
        tasks,
        limit=max_cost,
        judge=None if judge is None else read_pool(judge),
        judge_limit=judge_max_cost,
        progress=BarProgress(console=err),
    )
    return new, ask
