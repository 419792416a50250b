"""`prefill-router prices`: refreshes a pool's prices from a list of models."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from prefill_router.cli import options as opt
from prefill_router.cli.application import app, err, out, print_json
from prefill_router.cli.commands import UsageError, by_name, check_suffix
from prefill_router.files import check_place

if TYPE_CHECKING:
    from prefill_router.endpoints import PriceChange, RefreshedPool

_COMMENT = re.compile(r"(?:^|\s)#", re.MULTILINE)
_HEADS = ("input", "output", "cached input", "reasoning", "cache write", "for an hour")


@app.command()
def prices(
    pool: Annotated[Path, typer.Option(help="The pool file.")],
    to: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Write the prices to this file, and leave the pool file as it is."
        ),
    ] = None,
    source: Annotated[
        str, typer.Option("--from", help="OpenRouter's list of models, a URL or a file.")
    ] = "https://openrouter.ai/api/v1/models",
    provider: Annotated[
        list[str] | None,
        typer.Option(help="Take this provider's prices; TARGET=NAME for one target."),
    ] = None,
    map_: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="TARGET=MODEL", help="The target's name in the list."),
    ] = None,
    overwrite: opt.Overwrite = False,
    json: opt.AsDocument = False,
) -> None:
    """Refresh a pool's prices from OpenRouter's list of models, and date them.

    A target is looked up by its model, then by its name. A target that isn't listed keeps its
    prices. Comments in the pool file are lost.

    Example: prefill-router prices --pool pool.yaml --map fast=openai/gpt-oss-20b
    """
    from prefill_router.endpoints import refresh_prices
    from prefill_router.targets import read_pool, write_pool

    place = to or pool
    if to is None and place.suffix.lower() not in (".yaml", ".yml"):
        raise UsageError(f"{place} isn't a YAML file; name one with --out, such as pool.yaml")
    check_suffix("--out", place, (".yaml", ".yml"))
    general, by_target = _split_providers(provider or [])
    models = by_name("--map", map_ or [], "TARGET=MODEL")
    check_place(place)
    before = read_pool(pool)
    with err.status(f"reading {source}"):
        refreshed = refresh_prices(
            before,
            date=datetime.now(UTC).date().isoformat(),
            source=source,
            models=models,
            provider=general,
            providers=by_target,
        )
    if place == pool and _COMMENT.search(pool.read_text(encoding="utf-8-sig")):
        err.say(f"note: the comments in {pool} aren't kept")
    if to is None:
        write_pool(refreshed.pool, pool)
    else:
        with opt.replacing(to, overwrite=overwrite or _is_same(to, pool)) as temporary:
            write_pool(refreshed.pool, temporary)
    if json:
        print_json(_prices_dict(refreshed, place))
    else:
        _show_prices(refreshed, place)


def _is_same(to: Path, pool: Path) -> bool:
    return to.exists() and to.samefile(pool)


def _split_providers(texts: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """The provider of all targets, and those of single ones."""
    general = [text for text in texts if "=" not in text]
    if len(general) > 1:
        raise UsageError(
            f"--provider names {' and '.join(general)}; name one, and others as TARGET=NAME"
        )
    by_target = by_name("--provider", [text for text in texts if "=" in text], "TARGET=NAME")
    return (general[0] if general else None), by_target


def _show_prices(refreshed: "RefreshedPool", place: Path) -> None:
    prices = [price for change in refreshed.changes for price in (change.before, change.after)]
    columns = [k for k in range(len(_HEADS)) if any(price[k] is not None for price in prices)]
    heads = (_HEADS[k] for k in columns)
    table = Table("target", "listed as", *heads, box=None, pad_edge=False)
    for change in refreshed.changes:
        at = "" if change.provider is None else f" at {change.provider}"
        moved = (_format_move(change.before[k], change.after[k]) for k in columns)
        table.add_row(change.target, f"{change.model}{at}", *moved)
    out.say(table)
    out.say(f"US dollars per million tokens, {refreshed.pool.prices_date}; written to {place}")
    for name, reason in refreshed.reasons.items():
        err.say(f"{name} keeps its prices: {reason}")
    for note in refreshed.notes:
        err.say(f"note: {note}")


def _format_move(before: float | None, after: float | None) -> str:
    if before == after:
        return _format_price(after)
    return f"{_format_price(before)} -> {_format_price(after)}"


def _format_price(price: float | None) -> str:
    return "-" if price is None else f"{price:.10g}"


def _prices_dict(refreshed: "RefreshedPool", place: Path) -> dict[str, Any]:
    return {
        "out": str(place),
        "source": refreshed.source,
        "prices_date": refreshed.pool.prices_date,
        "found": [_change_dict(change) for change in refreshed.changes],
        "kept": dict(refreshed.reasons),
        "notes": list(refreshed.notes),
    }


def _change_dict(change: "PriceChange") -> dict[str, Any]:
    from prefill_router.targets import PRICES

    return {
        "target": change.target,
        "model": change.model,
        "provider": change.provider,
        "before": dict(zip(PRICES, change.before, strict=True)),
        "after": dict(zip(PRICES, change.after, strict=True)),
        "changed": change.before != change.after,
    }
