"""`prefill-router versions`, `promote` and `rollback`: which version of a router serves.

A gateway that serves these versions (`serve --versions`) takes each step within seconds.
"""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from prefill_router.cli import options as opt
from prefill_router.cli.application import app, out, print_json

if TYPE_CHECKING:
    from prefill_router.router import VersionState

Registry = Annotated[
    str, typer.Argument(help="The folder or URL of the versions.", metavar="VERSIONS")
]


@app.command()
def versions(
    registry: Registry,
    steps: Annotated[
        int, typer.Option(help="How many of the latest steps to show, with their evidence.")
    ] = 5,
    as_json: opt.AsJson = False,
) -> None:
    """List the versions of a router, and what led to the one that serves.

    Example: prefill-router versions versions --steps 20
    """
    from prefill_router.router import VersionRegistry

    state = VersionRegistry.at(registry, create=False).state()
    if as_json:
        print_json(state.model_dump(mode="json"))
        return
    _show(state)
    for step in state.steps[max(0, len(state.steps) - steps) :]:
        share = f" with {100 * step.share:g} % of conversations" if step.share else ""
        out.say(f"{step.at}  {step.version or 'default target'}: {step.event}{share}, by {step.by}")
        why = step.evidence.get("why")
        for name, value in ([("why", why)] if why else []) + step.figures():
            out.say(f"    {name}: {value}")


@app.command()
def promote(
    registry: Registry,
    name: Annotated[
        str | None, typer.Argument(metavar="VERSION", help="The version; by default the candidate.")
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(help="Let it decide on this share of the conversations, not on all."),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Let a version serve, at once or on a share of the conversations, without a test.

    Example: prefill-router promote versions 0002 --share 0.1
    """
    from prefill_router.router import VersionRegistry

    found = VersionRegistry.at(registry, create=False)
    if share is None:
        state = found.promote(name, by="operator")
    else:
        if name is not None and name != found.state().candidate:
            found.shadow(name, by="operator")
        state = found.widen(share, by="operator")
    _tell(state, as_json=as_json)


@app.command()
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
    """Let what served before serve again: a version, or the default target.

    Example: prefill-router rollback versions
    """
    from prefill_router.router import VersionRegistry

    _tell(VersionRegistry.at(registry, create=False).roll_back(name), as_json=as_json)


def _tell(state: "VersionState", *, as_json: bool) -> None:
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


def _show(state: "VersionState") -> None:
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
