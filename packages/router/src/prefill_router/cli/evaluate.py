"""`prefill-router evaluate` and `compare`: judge routers on scored answers.

`compare` fits any set of routers and compares them, or says which differences between two fitted
ones are significant.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefill_router.accelerator import compute_on
from prefill_router.cli import options as opt
from prefill_router.cli.application import app, columns, err, out, print_json
from prefill_router.cli.commands import UsageError, by_name
from prefill_router.cli.judged_queries import ALL_PARTS, JudgedQueries, check_part_name
from prefill_router.cli.options import with_engine
from prefill_router.errors import DataError, MissingExtraError
from prefill_router.money import list_price
from prefill_router.options import SHARE_ABOVE_ZERO
from prefill_router.progress import BarProgress
from prefill_router.remote import PathOrUrl

if TYPE_CHECKING:
    from rich.table import Table

    from prefill_router.comparison import ComparisonPlan, ComparisonResult
    from prefill_router.data import RoutingDataset
    from prefill_router.engines import Engine
    from prefill_router.evaluation import Axis, Comparison, Evaluation, Verdict, WinVerdict
    from prefill_router.policy import Predictions
    from prefill_router.router import Router


@app.command()
def evaluate(
    folder: opt.RouterFolder,
    data: opt.Data,
    report: opt.ReportOut,
    part: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The queries to judge on: cross-fit, train, calibration, test, unseen or "
            "all. By default test; without a test part cross-fit; without that unseen.",
        ),
    ] = None,
    store: opt.Stores = None,
    resamples: opt.Resamples = 1000,
    seed: opt.ResampleSeed = 0,
    step: Annotated[
        float | None,
        SHARE_ABOVE_ZERO,
        typer.Option(help="Compute the curve at steps of lam, instead of exactly."),
    ] = None,
    linear: Annotated[
        bool, typer.Option("--linear", help="Normalise costs linearly, instead of by the inverse.")
    ] = False,
    encoder_folder: opt.EncoderFolders = None,
    device: opt.Device = None,
    overwrite: opt.Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print metrics.json.")] = False,
) -> None:
    """Judge a router on queries with known outcomes.

    States that are in no store are encoded now, and kept in the cache. The cost of an answer is the
    recorded cost. Without one, it is computed from the tokens and the router's prices. A router
    that learned from votes is judged in win rate.

    Example: prefill-router evaluate router --data answers --out report
    """
    from prefill_router.data import Origin, read_dataset
    from prefill_router.reporting import check_replaceable

    check_part_name(part, ALL_PARTS)
    check_replaceable(report)
    origin = Origin.of("evaluate", folder, data)
    opt.check_origin(report, origin, overwrite=overwrite)
    router = opt.load_router(folder, encoder_folder)
    whole = read_dataset(data)
    queries = JudgedQueries.of(router, whole, part)
    changed = whole.fingerprint != router.record.trained_on.fingerprint
    if changed and queries.part not in ("all", "unseen"):
        err.print(
            "note: the dataset has these ids, but it isn't the one that the router was fitted on: "
            "its prompts, targets or labels differ"
        )
    bar, stores = BarProgress(console=err), opt.open_stores(store)
    head: dict[str, Any] = {
        "title": f"{folder.name} on {data.name}",
        "facts": _list_facts(queries, folder, data),
        "origin": origin,
    }
    if router.is_voted:
        with compute_on(device):
            verdict = queries.judge_votes(stores, bar)
        _report_votes(verdict, report, head, as_json=as_json)
        return
    axis: Axis = "linear" if linear else "inverse"
    with compute_on(device):
        result = queries.evaluate(stores, bar, resamples=resamples, seed=seed, step=step, axis=axis)
    _report_evaluation(result, report, head, as_json=as_json)


def _report_votes(
    verdict: "WinVerdict", report: Path, head: dict[str, Any], *, as_json: bool
) -> None:
    """Write the report of a router that learned from votes, and print its verdict."""
    from prefill_router.cli.headline import show_verdict
    from prefill_router.reporting import write_vote_report

    with _noting_no_page(report):
        write_vote_report(verdict, report, **head)
    if as_json:
        print_json(verdict.to_dict())
        return
    show_verdict(verdict)
    _say_report(report)


def _report_evaluation(
    result: "Evaluation", report: Path, head: dict[str, Any], *, as_json: bool
) -> None:
    """Write the report of an evaluation, and print its numbers."""
    from prefill_router.cli.headline import show_headline
    from prefill_router.reporting import write_report

    with _noting_no_page(report):
        write_report(result, report, **head)
    if as_json:
        print_json(result.to_dict())
        return
    show_headline(result)
    _say_report(report)


def _say_report(report: Path) -> None:
    page = report / "index.html"
    out.say(f"report: {page if page.exists() else report}")


@contextmanager
def _noting_no_page(report: PathOrUrl) -> Iterator[None]:
    """Note on the terminal that a page couldn't be drawn; the numbers were written before it."""
    try:
        yield
    except MissingExtraError as error:
        err.say(f"note: {report} has the numbers and no page: {error}")


def _list_facts(queries: JudgedQueries, folder: PathOrUrl, data: PathOrUrl) -> dict[str, str]:
    """The facts on the report's page."""
    router = queries.router
    return {
        "dataset": str(data),
        "part": queries.words,
        "queries": f"{len(queries.judged):,}",
        "router": str(folder),
        "fitted": router.record.created,
        "prices": router.pool.prices_date or "undated",
    }


_COMPARED_METRICS = {
    "auc_mean": "mean\nAUC",
    "choice_auc": "choice\nAUC",
    "brier_mean": "Brier",
    "argmax_accuracy": "lam 1\n%",
    "chosen_accuracy": "chosen\n%",
    "savings": "saved\n%",
    "p_auccc": "P-\nAUCCC",
}
"""The metrics of a comparison and their headings, with the unit: a figure stays on one line."""


@app.command()
@with_engine
def compare(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG",
            help="A YAML file with routers to fit, or all, the packaged list. To compare two "
            "fitted routers: the folder of the first, with OTHER.",
        ),
    ],
    data: opt.Data,
    other: opt.OtherRouter = None,
    to: Annotated[
        Path | None, typer.Option("--out", help="The report's folder; needed without OTHER.")
    ] = None,
    store: opt.Stores = None,
    reference: Annotated[
        str | None,
        typer.Option(help="The router that the others are compared with; by default the first."),
    ] = None,
    encoder_price: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROUTER=DOLLARS",
            help="The price of a router's encoder, in US dollars per million tokens. It is "
            "added to the router's cost. Repeatable.",
        ),
    ] = None,
    split_file: opt.SplitFile = None,
    resamples: opt.Resamples = 1000,
    seed: opt.StudySeed = 0,
    encoder_folder: opt.EncoderFolders = None,
    device: opt.Device = None,
    overwrite: opt.Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print compare.json.")] = False,
    engine: "Engine | None" = None,
) -> None:
    """Compare routers: fit those of a list on one split, or take two that are fitted.

    Every fitted router is kept in the report's folder. After an interruption the same command goes
    on from there. States that are in no store are encoded now, and kept in the cache.

    Two fitted routers are compared on queries that neither was fitted on, at the prices of the
    first. Every resample has the same queries for both, so that the interval is of the difference.

    Example: prefill-router compare all --data answers --store states --out comparison

    Example: prefill-router compare router other-router --data answers
    """
    from prefill_router.comparison import STUDY, run_plan, to_dict, write
    from prefill_router.data import Origin, read_dataset
    from prefill_router.fitting import gather
    from prefill_router.reporting import ROUTERS, check_place, mark

    if other is not None:
        options = {"--out": to, "--reference": reference, "--encoder-price": encoder_price}
        _refuse_options({**options, "--split": split_file, "--engine": engine})
        with compute_on(device):
            compared = _compare_routers(
                opt.path_or_url(config), other, data, store, resamples, seed, encoder_folder
            )
        _show_comparison(*compared, (Path(config).name, other.name), as_json=as_json)
        return
    if to is None:
        raise UsageError(
            "compare needs --out, the folder of the report; to compare two fitted routers "
            "instead, name both"
        )
    prices = _encoder_prices(encoder_price or [])
    check_place(to, STUDY)
    origin = Origin.of("compare", data)
    opt.check_origin(to, origin, overwrite=overwrite)
    _refuse_router(config)
    dataset = read_dataset(data)
    plan = _plan_comparison(config, dataset, split_file, reference, resamples, seed, prices)
    bar = BarProgress(console=err)
    needs = tuple(need for recipe in plan.recipes.values() for need in recipe.needs)
    stores = opt.open_stores(store)
    mark(to, STUDY, plan.to_dict())
    origin.write(to)
    with compute_on(device):
        states = gather(needs, dataset, stores, sources=opt.sources(encoder_folder), progress=bar)
        result = run_plan(plan, dataset, states, folder=to / ROUTERS, engine=engine, progress=bar)
    write(result, to, title=f"Routers on {data.name}", facts=_compare_facts(plan, data))
    if as_json:
        print_json(to_dict(result))
        return
    _show_compare(result)
    out.say(f"report: {to / 'index.html'}")


def _refuse_router(config: str) -> None:
    if (Path(config) / "router.json").is_file():
        raise DataError(
            f"{config} is one fitted router; name a second router after it to compare the two"
        )


def _plan_comparison(
    config: str,
    dataset: "RoutingDataset",
    split_file: Path | None,
    reference: str | None,
    resamples: int,
    seed: int,
    prices: "Mapping[str, float]",
) -> "ComparisonPlan":
    """The plan for the recipes of a file or a set; says how long their fits take."""
    from prefill_router.comparison import (
        ComparisonPlan,
        describe_minutes,
        draw_for,
        estimate_minutes,
        recipes_of,
    )
    from prefill_router.data import load_split

    recipe_list = recipes_of(config)
    recipes = recipe_list.recipes
    dataset.meaning.refuse_votes("a comparison of routers")
    split = draw_for(recipes, dataset, seed=seed) if split_file is None else load_split(split_file)
    minutes = describe_minutes(*estimate_minutes(len(recipes), dataset, split))
    err.say(f"estimated: {minutes} on two cores for {len(recipes)} routers, encoding apart")
    compared = reference or next(iter(recipes))
    return ComparisonPlan(
        recipes, compared, split, resamples, seed, prices=prices, left_out=recipe_list.left_out
    )


def _show_comparison(
    comparison: "Comparison",
    queries: int,
    verdicts: "list[Verdict | None]",
    names: tuple[str, str],
    *,
    as_json: bool,
) -> None:
    """Show how two fitted routers compare."""
    if as_json:
        judged = [None if verdict is None else verdict.to_dict() for verdict in verdicts]
        by_place = dict(zip(("first", "second"), judged, strict=True))
        print_json({"queries": queries, "verdicts": by_place, **comparison.to_dict()})
        return
    _show_paired(comparison, queries, *names)
    _show_verdicts(names, verdicts)


def _refuse_options(options: "Mapping[str, object]") -> None:
    """Refuse the options of a list of routers where two fitted ones are compared."""
    for option, value in options.items():
        if value:
            raise UsageError(
                f"{option} is for a list of routers; leave it out to compare two fitted ones"
            )


def _encoder_prices(texts: list[str]) -> dict[str, float]:
    prices = by_name("--encoder-price", texts, "ROUTER=DOLLARS")
    try:
        return {name: float(price) for name, price in prices.items()}
    except ValueError:
        raise UsageError(
            f"--encoder-price is {texts}; write each as ROUTER=DOLLARS, per million tokens, such "
            "as ours=0.05"
        ) from None


def _compare_facts(plan: "ComparisonPlan", data: PathOrUrl) -> dict[str, str]:
    sizes = ", ".join(f"{len(ids):,} {part}" for part, ids in plan.split.parts.items())
    return {
        "dataset": str(data),
        "queries": sizes,
        "split": f"seed {plan.split.seed}; fitted on train alone, calibrated on calibration",
        "intervals": f"95 %, {plan.resamples:,} bootstrap resamples of the test part",
        "reference": plan.reference,
        **({} if not plan.prices else {"encoders charge": _describe_prices(plan)}),
    }


def _describe_prices(plan: "ComparisonPlan") -> str:
    prices = ", ".join(f"{name} {list_price(price)}" for name, price in plan.prices.items())
    return f"{prices} per million tokens, part of these routers' costs"


def _make_comparison_table(result: "ComparisonResult") -> "Table":
    """A row for each router, the best AUC first, marked where it differs from the reference."""
    from prefill_router.comparison import by_number, gains_of, significance_of
    from prefill_router.evaluation import HEADLINE, worded

    heads = (*_COMPARED_METRICS.values(), "over\nmix", "over\nprice")
    table = columns("router", *heads, fold=True, no_wrap=True)
    marks = {"better": "+", "worse": "-", "": " "}
    for fitted in by_number(result.routers, "auc_mean"):
        cells = [
            worded(fitted.headline[name].value, HEADLINE[name].unit).removesuffix(" %")
            + marks[significance_of(fitted.against, name)]
            for name in _COMPARED_METRICS
        ]
        gains = [
            worded(gain.value, "points").removesuffix(" pp") for gain in gains_of(fitted).values()
        ]
        table.add_row(fitted.name, *cells, *gains)
    return table


def _show_compare(result: "ComparisonResult") -> None:
    from prefill_router.comparison import ONE_BY_ONE, list_left_out, verdict

    out.print(_make_comparison_table(result))
    out.print(
        "over mix, over price: the gain in points over the best fixed mix, and over price alone, "
        "at the router's setting",
        style="dim",
    )
    out.print(
        f"+ surely better, - surely worse than {result.plan.reference}; {ONE_BY_ONE}",
        style="dim",
    )
    for failed in result.not_fitted:
        err.say(f"{failed.name} could not be fitted: {failed.why}")
    for line in list_left_out(result.left_out):
        err.say(line)
    for line in verdict(result):
        out.say(line)
    weak = result.beaten_by_constant
    if weak:
        out.print(f"not surely better than a constant: {', '.join(weak)}")


def _compare_routers(
    first: PathOrUrl,
    second: PathOrUrl,
    data: PathOrUrl,
    store: opt.Stores,
    resamples: int,
    seed: int,
    encoder_folder: opt.EncoderFolders,
) -> "tuple[Comparison, int, list[Verdict | None]]":
    """Two fitted routers by a paired bootstrap, on how many queries, and the verdict on each."""
    from prefill_router.data import read_dataset
    from prefill_router.evaluation import compare as compare_predictions

    bar = BarProgress(console=err)
    routers = [opt.load_router(folder, encoder_folder) for folder in (first, second)]
    dataset = read_dataset(data)
    dataset.meaning.refuse_votes("a comparison of routers")
    unseen, is_crossed = _find_unseen(dataset, routers)
    unseen = unseen.with_pool(routers[0].pool)
    stores = opt.open_stores(store)
    predictions = [
        router.cross_fit.comparable_predictions.select(unseen.query_ids, targets=unseen.pool.names)
        if is_crossed and router.cross_fit is not None
        else opt.predict(router.with_pool(routers[0].pool), unseen, stores, bar)
        for router in routers
    ]
    comparison = compare_predictions(
        predictions[0],
        predictions[1],
        unseen,
        policies=(routers[0].policy, routers[1].policy),
        chosen=(routers[0].record.chosen, routers[1].record.chosen),
        resamples=resamples,
        seed=seed,
        progress=bar,
    )
    verdicts = [
        _judge_router(router, prediction, unseen, is_crossed=is_crossed)
        for router, prediction in zip(routers, predictions, strict=True)
    ]
    return comparison, len(unseen), verdicts


def _judge_router(
    router: "Router", predictions: "Predictions", unseen: "RoutingDataset", *, is_crossed: bool
) -> "Verdict | None":
    """The verdict on a router on these queries; None where it has no references."""
    from prefill_router.evaluation import JudgedPart, Trial, judge

    if is_crossed and router.cross_fit is not None:
        return judge(
            router.cross_fit.judged_parts(unseen, policy=router.policy), lam=router.setting
        )
    references = router.references
    if references is None:
        return None
    own = predictions.select(predictions.query_ids, targets=references.targets)
    trial = Trial.join(own, unseen, policy=router.policy)
    return judge([JudgedPart(trial, references, router.record.chosen)], lam=router.setting)


def _find_unseen(
    dataset: "RoutingDataset", routers: "list[Router]"
) -> "tuple[RoutingDataset, bool]":
    """The queries that neither router learned from, and whether they are predicted out of fold.

    Queries that share a prompt or a conversation with a learned one are left out. Where there are
    none, those that both routers were fitted on and predict out of fold.
    """
    from prefill_router.data import find_unseen
    from prefill_router.evaluation import count_groups, warn_of_few

    first, second = routers
    if set(first.pool.names) != set(second.pool.names):
        raise DataError(
            f"the routers have different targets, {sorted(first.pool.names)} and "
            f"{sorted(second.pool.names)}; only routers over the same targets can be compared"
        )
    ids = find_unseen(dataset, [i for router in routers for i in _list_learned_ids(router)])
    crossed = [set(r.cross_fit.predictions.query_ids) for r in routers if r.cross_fit is not None]
    is_crossed = not ids and len(crossed) == len(routers)
    if is_crossed:
        ids = [i for i in dataset.query_ids if all(i in ids_of_one for ids_of_one in crossed)]
    if not ids:
        raise DataError(
            "the dataset has no query that both routers can be judged on: none is unseen by "
            "both, and none has predictions out of fold from both; give new queries, or fit "
            "both on one split (fit --split)"
        )
    left = len(dataset) - len(ids)
    if left:
        err.print(
            f"note: {left:,} queries are left out: a router learned from them, or from others of "
            "their conversations"
        )
    unseen = dataset.select(ids, targets=first.pool.names)
    few = warn_of_few(count_groups(unseen.conversations))
    if few:
        err.print(f"note: {few}")
    return unseen, is_crossed


def _list_learned_ids(router: "Router") -> "list[str]":
    parts = router.split.parts.items()
    return [query_id for part, ids in parts if part != "test" for query_id in ids]


def _show_paired(comparison: "Comparison", queries: int, first: str, second: str) -> None:
    from prefill_router.evaluation import HEADLINE, interval, worded

    heads = (first, second, "difference", "95 % interval", "")
    table = columns(f"{queries:,} queries", *heads, fold=True, no_wrap=True)
    for name, estimate in comparison.difference.items():
        if estimate.reason:
            continue
        entry = HEADLINE[name]
        unit = "points" if entry.unit == "share" else entry.unit
        better = (estimate.value > 0) == (entry.better == "higher")
        sure = comparison.significant(name) and entry.better != "neither"
        table.add_row(
            entry.label,
            worded(comparison.first[name], entry.unit),
            worded(comparison.second[name], entry.unit),
            worded(estimate.value, unit, signed=True),
            interval(estimate, unit),
            ("better" if better else "worse") if sure else "",
        )
    out.print(table)


def _show_verdicts(names: "Sequence[str]", verdicts: "Sequence[Verdict | None]") -> None:
    """Print the gains of each router over the best fixed mix and over price alone."""
    out.print()
    for name, verdict in zip(names, verdicts, strict=True):
        if verdict is not None:
            out.say(f"{name}: {verdict.word}: {verdict.because}")
