"""`prefill-router key`: the keys that clients of a gateway bear."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from prefill_router.cli.app import err, out, print_json
from prefill_router.cli.usage import UsageError

if TYPE_CHECKING:
    from prefill_router.gateway.guard.client_keys import ClientKey

_key = typer.Typer()

_File = Annotated[Path, typer.Option("--file", help="The file of keys.")]
_Name = Annotated[str, typer.Argument(metavar="NAME", help="What receipts and budgets call it.")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
_DEFAULT = Path("keys.yaml")


@_key.command()
def new(
    name: _Name,
    file: _File = _DEFAULT,
    requests_per_minute: Annotated[int | None, typer.Option(help="At most so many.")] = None,
    concurrent: Annotated[int | None, typer.Option(help="At most so many at once.")] = None,
    dollars_per_day: Annotated[float | None, typer.Option(help="What it may spend.")] = None,
    dollars_per_hour: Annotated[float | None, typer.Option(help="What it may spend.")] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="One that it may use; all, where none is named.")
    ] = None,
    admin: Annotated[
        bool, typer.Option("--admin", help="It may read metrics and use the page.")
    ] = False,
    expires: Annotated[
        str | None, typer.Option(help="The last day that it is good, such as 2027-01-31.")
    ] = None,
    as_json: _AsJson = False,
) -> None:
    """Make a key, print it once, and keep its hash.

    The key is all that is printed on standard output.

    Example: prefill-router key new alice --file keys.yaml --dollars-per-day 5
    """
    from prefill_router.gateway.guard.client_keys import add_key, digest, new_key

    made = new_key()
    given = {
        "name": name,
        "sha256": digest(made),
        "created": datetime.now(UTC).date(),
        "requests_per_minute": requests_per_minute,
        "concurrent": concurrent,
        "dollars_per_day": dollars_per_day,
        "dollars_per_hour": dollars_per_hour,
        "targets": tuple(target) if target else None,
        "admin": admin,
        "expires": expires,
    }
    add_key(file, _checked(given))
    if as_json:
        print_json({"name": name, "key": made, "file": str(file)})
    else:
        out.print(made, soft_wrap=True)
    err.print(
        f"{file} keeps its hash alone: this is the only time that it is shown", soft_wrap=True
    )


@_key.command(name="list")
def list_keys(
    file: _File = _DEFAULT,
    as_json: _AsJson = False,
) -> None:
    """List the keys of a file, and what they may do.

    Example: prefill-router key list --file keys.yaml
    """
    from prefill_router.gateway.guard.client_keys import read_rows

    rows = [key.model_dump(mode="json", exclude={"sha256"}) for key in read_rows(file)]
    if as_json:
        print_json(rows)
        return
    table = Table("name", "created", "may", "expires", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row["name"], row["created"] or "-", _told(row), row["expires"] or "-")
    out.print(table, soft_wrap=True)


@_key.command()
def revoke(name: _Name, file: _File = _DEFAULT, as_json: _AsJson = False) -> None:
    """Take a key out of a file; a gateway that runs refuses it from its next reload on.

    Example: prefill-router key revoke alice --file keys.yaml
    """
    from prefill_router.gateway.guard.client_keys import remove_key

    remove_key(file, name)
    if as_json:
        print_json({"name": name, "file": str(file)})
        return
    out.print(f"{file} no longer has the key {name!r}", soft_wrap=True)


def _checked(given: dict[str, Any]) -> "ClientKey":
    from pydantic import ValidationError

    from prefill_router.gateway.guard.client_keys import ClientKey

    try:
        return ClientKey.model_validate(given)
    except ValidationError as error:
        told = "; ".join(f"{e['loc'][0]}: {e['msg']}" for e in error.errors())
        raise UsageError(told) from None


def _told(row: dict[str, Any]) -> str:
    limits = [
        f"{row[field]:,} {words}"
        for field, words in (
            ("requests_per_minute", "requests a minute"),
            ("concurrent", "at once"),
        )
        if row[field] is not None
    ]
    dollars = [
        f"${row[f'dollars_per_{per}']:g} a {per}"
        for per in ("hour", "day")
        if row[f"dollars_per_{per}"] is not None
    ]
    whom = [f"ask {', '.join(row['targets'])}"] if row["targets"] else []
    return (
        "; ".join([*(["all an admin may"] if row["admin"] else []), *whom, *limits, *dollars])
        or "ask"
    )
