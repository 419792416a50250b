"""`prefill-router guarantee`: the cheapest lam that keeps a share of the best target's accuracy."""

from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router.cli import options as opt
from prefill_router.cli.application import ExitCode, app, err, out, print_json
from prefill_router.cli.commands import parse_choice
from prefill_router.cli.judged_queries import CROSS_FIT, JudgedQueries, check_part_name
from prefill_router.errors import DataError
from prefill_router.options import NOT_NEGATIVE, SHARE_ABOVE_ZERO, SHARE_BETWEEN
from prefill_router.progress import BarProgress

if TYPE_CHECKING:
    from prefill_router.data import RoutingDataset
    from prefill_router.evaluation import Estimate
    from prefill_router.guarantee import Assumption, Guarantee


@app.command()
def guarantee(
    folder: opt.RouterFolder,
    data: opt.Data,
    share: Annotated[
        float,
        SHARE_ABOVE_ZERO,
        typer.Option("--keep", help="Share of the best single target's accuracy to keep."),
    ] = 0.98,
    confidence: Annotated[
        float, SHARE_BETWEEN, typer.Option(help="Confidence of the guarantee.")
    ] = 0.95,
    part: opt.UnseenPart = None,
    best: Annotated[
        str | None,
        typer.Option(help="The best single target; by default that of the train part."),
    ] = None,
    assume: Annotated[
        str,
        typer.Option(
            help="nothing: a missing label counts as the worst possible one. "
            "missing-at-random: leave out queries that lack a label, unless the data "
            "contradict this."
        ),
    ] = "nothing",
    store: opt.Stores = None,
    resamples: Annotated[
        int, NOT_NEGATIVE, typer.Option(help="Bootstrap resamples for the intervals; 0 for none.")
    ] = 1000,
    seed: Annotated[int, NOT_NEGATIVE, typer.Option(help="Seed of the resampling.")] = 0,
    encoder_folder: opt.EncoderFolders = None,
    as_json: opt.AsJson = False,
) -> None:
    """Find the cheapest lam that keeps a share of the best single target's accuracy, guaranteed.

    The guarantee holds on all queries like those of the part, labelled or not. Don't use a part by
    which the router was fitted or chosen. If no lam can be guaranteed, the exit code is 3, and the
    reason and a fix are printed.

    Example: prefill-router guarantee router --data answers --keep 0.95
    """
    from prefill_router.data import read_dataset
    from prefill_router.evaluation import Trial
    from prefill_router.guarantee import guarantee as find_guarantee

    check_part_name(part)
    assumed = _read_assumption(assume)
    router = opt.load_router(folder, encoder_folder)
    dataset = read_dataset(data)
    dataset.meaning.refuse_votes("a guarantee")
    queries = JudgedQueries.of(router, dataset, part)
    best = best or _choose_best(queries.train)
    stores = opt.open_stores(store)
    predictions = queries.predict(stores, BarProgress(console=err))
    trial = Trial.join(predictions, queries.judged, policy=router.policy)
    result = find_guarantee(
        trial,
        best=best,
        keep=share,
        confidence=confidence,
        assume=assumed,
        queries=queries.judged.queries,
        resamples=resamples,
        seed=seed,
    )
    if as_json:
        print_json({"part": queries.part, **result.to_dict()})
    else:
        _show_guarantee(result)
        _show_conditions(is_crossed=queries.part == CROSS_FIT, has_chance=trial.chance is not None)
    if result.lam is None:
        raise typer.Exit(ExitCode.NO_GUARANTEE)


def _show_conditions(*, is_crossed: bool, has_chance: bool) -> None:
    """Say what the promise rests on besides the queries."""
    if is_crossed:
        out.say(
            "tested on routers that were each fitted without the queries that they are tested on, "
            "in the place of the router that learned from all of them"
        )
    if has_chance:
        out.say(
            "labels err or were selected by chance: the promise holds if their errors and "
            "propensities are as the dataset says"
        )


def _choose_best(train: "RoutingDataset | None") -> str:
    from prefill_router.guarantee import best_single

    if train is None:
        raise DataError(
            "the dataset has none of the queries that the router was fitted on, so the best "
            "single target isn't known; name it: --best TARGET"
        )
    return best_single(train)


def _read_assumption(name: str) -> "Assumption":
    from prefill_router.guarantee import ASSUMPTIONS

    return parse_choice("--assume", name, ASSUMPTIONS)


def _show_guarantee(result: "Guarantee") -> None:
    promise = (
        f"{100 * result.keep:g} % of the accuracy of {result.best} on all queries like these, with "
        f"a confidence of {100 * result.confidence:g} %"
    )
    if result.lam is None:
        first, last = f"none: no lam can be guaranteed to keep {promise}", result.advice
    else:
        accuracy, saved = _format_share(result.kept_share), _format_savings(result.savings)
        first = f"lam = {result.lam:g} keeps at least {promise}"
        last = f"expected{_describe_where(result)}: {accuracy} of that accuracy, {saved}"
    for line in (first, f"tested on {result.queries:,} queries", *_missing_labels(result), last):
        out.say(line)


def _missing_labels(result: "Guarantee") -> list[str]:
    """Lines on missing labels: how many, where, whether at random, and how they count."""
    from prefill_router.guarantee import word_places

    missing = result.missing
    if not missing.queries:
        return []
    handled = (
        "each counts as the worst that it could be, so the promise holds whatever they are"
        if result.bounded
        else "these queries are left out, as --assume missing-at-random says; the promise holds "
        "only if that is so"
    )
    lines = [f"{missing.queries:,} queries lack a label ({word_places(missing)}): {handled}"]
    if missing.signs:
        signs = ", ".join(f"by {name} (p = {p:.2g})" for name, p in missing.signs.items())
        aside = "; --assume is set aside" if result.assume != "nothing" else ""
        lines.append(f"labels aren't missing at random, but {signs}{aside}")
    return lines


def _describe_where(result: "Guarantee") -> str:
    if not result.missing.queries:
        return ""
    least = (
        f" (at least {100 * result.least:.1f} % whatever the others are)" if result.bounded else ""
    )
    return f" where both are measured{least}"


def _format_share(estimate: "Estimate") -> str:
    from prefill_router.evaluation import interval, worded

    spread = interval(estimate, "share")
    return worded(estimate.value, "share") + (f" ({spread})" if spread else "")


def _format_savings(estimate: "Estimate") -> str:
    return (
        f"savings unknown: {estimate.reason}"
        if estimate.reason
        else f"{_format_share(estimate)} saved"
    )
