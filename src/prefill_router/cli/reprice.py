"""`prefill-router reprice`: other prices, the same router."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router.cli.app import app, err, out, print_json
from prefill_router.cli.overwrite import Overwrite
from prefill_router.cli.usage import reading_words
from prefill_router.errors import ConfigError
from prefill_router.files import file_digest

if TYPE_CHECKING:
    from prefill_router.targets import Pool, Target


@app.command()
def reprice(
    folder: Annotated[Path, typer.Argument(metavar="ROUTER", help="The router's folder.")],
    prices: Annotated[Path, typer.Option(help="A pool.yaml or a prices.csv.")],
    date: Annotated[
        str | None, typer.Option(help="The day of the prices, such as 2026-11-20.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--out", help="Write here and leave ROUTER as it is.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the new prices as JSON.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Change a router's prices without fitting it again.

    Targets that the file doesn't name keep their prices; names that are no targets are refused.

    Example: prefill-router reprice router --prices prices.csv --date 2026-11-20
    """
    from prefill_router.router import Router
    from prefill_router.targets import read_pool
    from prefill_router.targets.pool import day_of

    if date is not None:
        with reading_words():
            day_of(date)
    router = Router.load(folder)
    listed = read_pool(prices)
    known = {
        t.name: (t.input_price, t.output_price)
        for t in listed
        if t.input_price is not None and t.output_price is not None
    }
    if not known:
        raise ConfigError(f"{prices} has no prices; give an input and an output price of a target")
    kept = [name for name in router.pool.names if name not in known]
    try:
        router.pool.indices(listed.names)
        pool = router.pool.with_prices(known, date=date or listed.prices_date)
    except ConfigError as error:
        raise ConfigError(f"{prices}: {error}") from None
    repriced = router.with_pool(pool)
    if to is not None and not overwrite:
        _check_same(to, folder)
    repriced.save(to or folder)
    unmoved = [name for name in repriced.costs.recorded if name in known]
    if as_json:
        print_json(
            {
                "router": str(to or folder),
                "prices_date": pool.prices_date,
                "targets": {t.name: [t.input_price, t.output_price] for t in pool},
                "kept": kept,
                "without_effect": unmoved,
            }
        )
        return
    out.print(_summary(router.pool, pool), soft_wrap=True)
    if unmoved:
        err.print(
            "without effect, since no output token counts are known and the median recorded cost "
            f"stands: {', '.join(unmoved)}",
            soft_wrap=True,
        )
    if kept:
        err.print(f"prices kept, the file doesn't name them: {', '.join(kept)}", soft_wrap=True)


def _check_same(to: Path, folder: Path) -> None:
    """Check that nothing else stands where the repriced router goes.

    Raises:
        ConfigError: Something does.
    """
    from prefill_router.router.storage import check_replaceable, is_router

    check_replaceable(to)
    there, here = (place / "weights.safetensors" for place in (to, folder))
    if is_router(to) and not (there.is_file() and file_digest(there) == file_digest(here)):
        raise ConfigError(f"{to} isn't this router; name another folder, or say --overwrite")


def _prices(target: "Target") -> str:
    if not target.has_price:
        return "?"
    return f"${target.input_price} in, ${target.output_price} out"


def _summary(before: "Pool", after: "Pool") -> str:
    lines = [
        f"{old.name}: {_prices(old)} -> {_prices(new)}"
        for old, new in zip(before, after, strict=True)
        if old != new
    ]
    return "\n".join(lines) or "no price differs"
