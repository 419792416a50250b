"""`prefill-router keep` and `replay`: at which lam to run a router.

`keep` finds the cheapest lam that keeps the best target's accuracy, guaranteed; `replay` says what
another lam, other prices or another router would have chosen for recorded requests.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefill_router.cli import options as opt
from prefill_router.cli.application import (
    ExitCode,
    app,
    columns,
    counted,
    decimal_places,
    dollars,
    err,
    out,
    print_json,
)
from prefill_router.cli.commands import UsageError, one_of
from prefill_router_gateway.cli.receipts import SINCE_HELP, URL, moment
from prefill_router.cli.unseen_queries import PARTS, UnseenQueries
from prefill_router.errors import DataError
from prefill_router.files import check_place
from prefill_router.progress import BarProgress
from prefill_router.remote import PathOrUrl

if TYPE_CHECKING:
    from prefill_router.data import RoutingDataset
    from prefill_router.evaluation import Estimate
    from prefill_router_gateway import LatencySettings, Receipt
    from prefill_router_gateway.receipts import Replay
    from prefill_router.guarantee import Assumption, Guarantee
    from prefill_router.targets import Pool


@app.command()
def keep(
    folder: opt.RouterFolder,
    data: opt.Data,
    share: Annotated[
        float, typer.Option("--keep", help="Share of the best single target's accuracy to keep.")
    ] = 0.98,
    confidence: Annotated[float, typer.Option(help="Confidence of the guarantee.")] = 0.95,
    part: opt.UnseenPart = "test",
    best: Annotated[
        str | None,
        typer.Option(help="The best single target; by default that of the train part."),
    ] = None,
    assume: Annotated[
        str,
        typer.Option(
            help="nothing: a missing label counts as the worst that it could be. "
            "missing-at-random: queries that lack one are left out, unless the data contradict it."
        ),
    ] = "nothing",
    store: opt.Stores = None,
    resamples: Annotated[
        int, typer.Option(help="Bootstrap resamples for the intervals; 0 for none.")
    ] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the resampling.")] = 0,
    encoder_folder: opt.EncoderFolders = None,
    as_json: opt.AsJson = False,
) -> None:
    """Find the cheapest lam that keeps a share of the best single target's accuracy, guaranteed.

    The guarantee holds on all queries like those of the part, labelled or not; these must not have
    been used to fit the router or to choose it. If no lam can be guaranteed, the exit code is 3,
    and the reason and a remedy are printed.

    Example: prefill-router keep router --data answers --keep 0.95
    """
    from prefill_router.data import read_dataset
    from prefill_router.evaluation import Trial
    from prefill_router.guarantee import guarantee

    one_of("--part", part, PARTS)
    assumed = _assumption(assume)
    router = opt.load_router(folder, encoder_folder)
    unseen = UnseenQueries.of(router, read_dataset(data), part)
    best = best or _best(unseen.train)
    stores = opt.open_stores(store)
    predictions = opt.predict(router, unseen.judged, stores, BarProgress(console=err))
    trial = Trial.join(predictions, unseen.judged, policy=router.policy)
    found = guarantee(
        trial,
        best=best,
        keep=share,
        confidence=confidence,
        assume=assumed,
        queries=unseen.judged.queries,
        resamples=resamples,
        seed=seed,
    )
    if as_json:
        print_json({"part": part, **found.to_dict()})
    else:
        _show_guarantee(found)
        if trial.chance is not None:
            out.say(
                "labels err or were selected by chance: the promise holds if their errors and "
                "propensities are as the dataset says"
            )
    if found.lam is None:
        raise typer.Exit(ExitCode.NO_GUARANTEE)


def _best(train: "RoutingDataset | None") -> str:
    from prefill_router.guarantee import best_single

    if train is None:
        raise DataError(
            "the dataset has none of the queries that the router was trained on, so the best "
            "single target isn't known; name it: --best TARGET"
        )
    return best_single(train)


def _assumption(name: str) -> "Assumption":
    from prefill_router.guarantee import ASSUMPTIONS

    return one_of("--assume", name, ASSUMPTIONS)


def _show_guarantee(found: "Guarantee") -> None:
    promise = (
        f"{100 * found.keep:g} % of the accuracy of {found.best} on all queries like these, with a "
        f"confidence of {100 * found.confidence:g} %"
    )
    if found.lam is None:
        first, last = f"none: no lam can be guaranteed to keep {promise}", found.advice
    else:
        kept, saved = _worded(found.kept), _savings(found.savings)
        first = f"lam = {found.lam:g} keeps at least {promise}"
        last = f"expected{_where(found)}: {kept} of that accuracy, {saved}"
    for line in (first, f"tested on {found.queries:,} queries", *_missing_labels(found), last):
        out.say(line)


def _missing_labels(found: "Guarantee") -> list[str]:
    """Lines on missing labels: how many, where, whether at random, and how they count."""
    from prefill_router.guarantee import places

    missing = found.missing
    if not missing.queries:
        return []
    handled = (
        "each counts as the worst that it could be, so the promise holds whatever they are"
        if found.bounded
        else "these queries are left out, as --assume missing-at-random says; the promise holds "
        "only if that is so"
    )
    told = [f"{missing.queries:,} queries lack a label ({places(missing)}): {handled}"]
    if missing.signs:
        signs = ", ".join(f"by {name} (p = {p:.2g})" for name, p in missing.signs.items())
        aside = "; --assume is set aside" if found.assume != "nothing" else ""
        told.append(f"labels aren't missing at random, but {signs}{aside}")
    return told


def _where(found: "Guarantee") -> str:
    if not found.missing.queries:
        return ""
    least = (
        f" (at least {100 * found.least:.1f} % whatever the others are)" if found.bounded else ""
    )
    return f" where both are measured{least}"


def _worded(estimate: "Estimate") -> str:
    from prefill_router.evaluation import interval, worded

    spread = interval(estimate, "share")
    return worded(estimate.value, "share") + (f" ({spread})" if spread else "")


def _savings(estimate: "Estimate") -> str:
    return (
        f"savings unknown: {estimate.reason}" if estimate.reason else f"{_worded(estimate)} saved"
    )


_LAMS = (0.0, 0.25, 0.5, 0.75, 1.0)
_MOVES = 3


@app.command()
def replay(
    receipts: Annotated[str, typer.Argument(metavar="RECEIPTS", help=URL)],
    lam: Annotated[
        list[float] | None,
        typer.Option(help="A trade-off to try; repeatable. By default 0 to 1 in quarters."),
    ] = None,
    router: Annotated[
        PathOrUrl | None,
        typer.Option(
            help="Another router; it reads the prompts, which must have been kept.",
            parser=opt.path_or_url,
        ),
    ] = None,
    pool: Annotated[Path | None, typer.Option(help="A pool file with other prices.")] = None,
    deadline_seconds: Annotated[
        float | None,
        typer.Option(help="A deadline to try, as in routing.latency."),
    ] = None,
    dollars_per_second: Annotated[
        float, typer.Option(help="A price of waiting to try, as in routing.latency.")
    ] = 0.0,
    keep: Annotated[
        float | None,
        typer.Option(
            help="With a deadline or a price of waiting: the share of the accuracy to keep, by "
            "default 1."
        ),
    ] = None,
    sessions: Annotated[
        bool,
        typer.Option("--sessions", help="Let conversations keep their target, as in the gateway."),
    ] = False,
    since: Annotated[str | None, typer.Option(help=SINCE_HELP)] = None,
    to: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Draw the curve into this folder.")
    ] = None,
    encoder_folder: opt.EncoderFolders = None,
    as_json: opt.AsJson = False,
) -> None:
    """Decide recorded requests again: at another lam, at other prices, or by another router.

    Each request is decided by itself, or with --sessions after those of its conversation. Waiting
    can be tried where routing.latency was set, so that receipts have the predicted seconds.

    Example: prefill-router replay receipts.sqlite --lam 0.3 --lam 0.9 --since 7d
    """
    from prefill_router_gateway import LatencySettings
    from prefill_router_gateway.receipts import read_receipts
    from prefill_router.targets import read_pool

    if to is not None:
        check_place(to)
    prices = None if pool is None else read_pool(pool)
    read = partial(read_receipts, receipts, since=moment(since))
    latency = None
    if deadline_seconds is not None or dollars_per_second:
        latency = LatencySettings(
            deadline_seconds=deadline_seconds,
            dollars_per_second=dollars_per_second,
            keep=1.0 if keep is None else keep,
        )
    elif keep is not None:
        raise UsageError("--keep needs --deadline-seconds or --dollars-per-second")
    if not sessions:
        found = _decide(read, lam or _LAMS, router, prices, encoder_folder, latency)
    elif router is None and pool is None:
        from prefill_router_gateway.receipts import replay_sessions

        found = replay_sessions(read(), lam or _LAMS, latency=latency)
    else:
        raise UsageError(
            "--sessions uses the receipts' own forecasts and prices; leave out --router and "
            "--pool, or --sessions"
        )
    written = [] if to is None else _drawn(found, to)
    if as_json:
        print_json(_plain(found))
    else:
        _show_replay(found)
    for path in written:
        err.say(f"wrote {path}")


def _drawn(found: "Replay", to: Path) -> list[Path]:
    from prefill_router_gateway.receipts import write_picture

    return write_picture(found, to / "replay")


def _plain(found: "Replay") -> dict[str, Any]:
    return {
        "requests": len(found.recorded),
        "sessions": found.sessions,
        "left_out": dict(found.recorded.left_out),
        "notes": list(found.notes),
        "settings": [one.to_dict() for one in found.settings],
    }


def _decide(
    receipts: "Callable[[], Iterator[Receipt]]",
    lams: Sequence[float],
    router: PathOrUrl | None,
    pool: "Pool | None",
    encoders: Sequence[Path] | None,
    latency: "LatencySettings | None",
) -> "Replay":
    from prefill_router_gateway.receipts import Recorded, at_prices, by_router, replay as again

    recorded, notes = Recorded.of(receipts()), []
    if router is not None and len(recorded):
        other = opt.load_router(router, encoders)
        other = other if pool is None else other.with_pool(pool.select(other.pool.names))
        progress = BarProgress(console=err)
        recorded, lacking = by_router(recorded, receipts(), other, progress=progress)
        if lacking:
            notes.append(f"{counted(lacking, 'request')} without a prompt left out")
    elif pool is not None and len(recorded):
        recorded = at_prices(recorded, receipts(), pool)
        notes.append("the scale of costs is the range of these requests' estimates")
    return again(recorded, lams, latency=latency, notes=notes)


def _show_replay(found: "Replay") -> None:
    heads = ("changed", "expected\naccuracy", "estimated\ncost", "observed cost\nof the same")
    table = columns("setting", *heads)
    costs = [one.estimated_cost for one in found.settings if one.estimated_cost > 0]
    digits = decimal_places(min(costs, default=1.0))
    for one in found.settings:
        estimated, observed = (
            "?" if math.isnan(cost) else dollars(cost, digits=digits)
            for cost in (one.estimated_cost, one.observed_cost)
        )
        table.add_row(
            one.name,
            f"{one.changed:,} ({100 * one.changed / one.requests:.1f} %)",
            f"{one.accuracy:.3f}",
            estimated,
            f"{observed} ({one.observed:,})",
        )
    how = "in their conversations" if found.sessions else "each by itself"
    out.print(f"{counted(len(found.recorded), 'request')} decided again, {how}\n")
    out.print(table)
    out.print()
    for one in found.settings[1:]:
        moves = ", ".join(f"{n:,} {a} -> {b}" for a, b, n in one.moves[:_MOVES])
        if moves:
            out.say(f"{one.name}: {moves}")
    for why, count in found.recorded.left_out.items():
        out.say(f"left out: {count:,} {why}")
    for note in found.notes:
        out.say(f"note: {note}")
