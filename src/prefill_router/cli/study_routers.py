"""`prefill-router study seeds`, `ratio` and `shift`: the paper's studies of routers.

`seeds` measures how much the metrics vary with the training seed; `ratio` how accurate routing is
when a given share of the queries goes to one target; `shift` what a router loses on queries of a
kind that it wasn't trained on.
"""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router.cli.options import SplitFile, with_engine
from prefill_router.cli.study import (
    AsJson,
    Config,
    Data,
    Folders,
    OpenedStudy,
    Out,
    Resamples,
    Seed,
    Stores,
    StudyRequest,
    begin,
    finish,
    require_some,
    study,
)
from prefill_router.cli.usage import UsageError, one_of, reading_words
from prefill_router.errors import ConfigError

if TYPE_CHECKING:
    from prefill_router.data import RoutingDataset, Split
    from prefill_router.engines import Engine
    from prefill_router.router import Router
    from prefill_router.studies import RecipeFailure, Shift


@study.command()
@with_engine
def seeds(
    config: Config,
    data: Data,
    to: Out,
    store: Stores = None,
    count: Annotated[int, typer.Option(help="How many seeds, from --seed on.")] = 10,
    split_file: SplitFile = None,
    seed: Seed = 0,
    encoder_folder: Folders = None,
    as_json: AsJson = False,
    engine: "Engine | None" = None,
) -> None:
    """Fit each router with several seeds on one split: mean, standard deviation, extremes.

    A router with the same predictions for every seed is reported as deterministic.

    Example: prefill-router study seeds routers.yaml --data answers --store states --out seeds
    """
    from prefill_router.reporting import ROUTERS
    from prefill_router.studies import report_seeds, seed_study

    given = StudyRequest(config, data, to, store, split_file, seed, encoder_folder)
    opened = begin("seeds", given, {"count": count})
    found = seed_study(
        opened.dataset,
        opened.recipes,
        opened.states,
        opened.drawn,
        count=count,
        seed=seed,
        folder=to / ROUTERS,
        engine=engine,
        progress=opened.bar,
    )
    require_some(found.spreads, found.failed)
    made = report_seeds(found, title=f"Seed variability on {data.name}", known=opened.known)
    finish(made, to, as_json=as_json)


_BY = ("train", "test")


@study.command()
@with_engine
def ratio(
    config: Config,
    data: Data,
    to: Out,
    store: Stores = None,
    strong: Annotated[
        str | None, typer.Option(help="The strong target; the most accurate one if not given.")
    ] = None,
    strong_by: Annotated[
        str, typer.Option(help="The part that decides on it: train, or test as in the paper.")
    ] = "train",
    split_file: SplitFile = None,
    resamples: Resamples = 1000,
    seed: Seed = 0,
    encoder_folder: Folders = None,
    as_json: AsJson = False,
    engine: "Engine | None" = None,
) -> None:
    """Send each share of the queries to the strong target, in the router's own order.

    The others go where the router's probability is highest. Prices play no part.

    Example: prefill-router study ratio routers.yaml --data answers --store states --out ratio
    """
    from prefill_router.studies import report_ratio, routing_ratio, strongest

    one_of("--strong-by", strong_by, _BY)

    def check(dataset: "RoutingDataset", drawn: "Split") -> None:
        del drawn
        if strong is not None and strong not in dataset.pool.names:
            raise ConfigError(
                f"the strong target is {strong!r}; the dataset has {list(dataset.pool.names)}"
            )

    given = StudyRequest(config, data, to, store, split_file, seed, encoder_folder)
    opened = begin(
        "ratio", given, {"strong": strong, "strong_by": strong_by, "resamples": resamples}, check
    )
    routers, failed = _routers(opened, seed, engine)
    part = opened.dataset.select(opened.drawn["train" if strong_by == "train" else "test"])
    test = opened.dataset.select(opened.drawn["test"])
    found = routing_ratio(
        {name: one.predict(test, stores=opened.states) for name, one in routers.items()},
        test,
        strong=strong or strongest(part),
        resamples=resamples,
        seed=seed,
        progress=opened.bar,
    )
    how = "named" if strong else f"the most accurate on the {strong_by} part"
    known = {**opened.known, "chosen": how, "intervals": f"95 %, {resamples:,} resamples"}
    title = f"Accuracy against routing ratio on {data.name}"
    finish(report_ratio(found, title=title, known=known, failed=failed), to, as_json=as_json)


def _routers(
    opened: OpenedStudy, seed: int, engine: "Engine | None"
) -> "tuple[dict[str, Router], list[RecipeFailure]]":
    """The router itself where its folder was given, else those of the recipes."""
    from prefill_router.fitting import FitConfig
    from prefill_router.reporting import ROUTERS
    from prefill_router.studies import fit_all

    if opened.router is not None:
        return {next(iter(opened.recipes)): opened.router}, []
    fitted, failed = fit_all(
        opened.dataset,
        opened.recipes,
        opened.states,
        opened.drawn,
        config=FitConfig(seed=seed),
        folder=opened.folder / ROUTERS,
        engine=engine,
        progress=opened.bar,
    )
    require_some(fitted, failed)
    return {one.name: one.router for one in fitted}, failed


@study.command()
@with_engine
def shift(
    config: Config,
    data: Data,
    to: Out,
    store: Stores = None,
    train_on: Annotated[
        str | None, typer.Option(help="Benchmarks or domains to train on, separated by commas.")
    ] = None,
    test_on: Annotated[
        str | None, typer.Option(help="Benchmarks or domains to test on, separated by commas.")
    ] = None,
    hold_out: Annotated[
        str | None, typer.Option(help="Test on these and train on all the others.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="mmlu-pro-stem: STEM to humanities and social sciences.")
    ] = None,
    split_file: SplitFile = None,
    resamples: Resamples = 1000,
    seed: Seed = 0,
    encoder_folder: Folders = None,
    as_json: AsJson = False,
    engine: "Engine | None" = None,
) -> None:
    """Train on some benchmarks or domains and test on others, beside routers trained on all.

    All are tested on the same queries of the test part. One reference is trained on the whole train
    part, the other on a sample of it with as many queries as the shifted router had.

    Example: prefill-router study shift routers.yaml --data answers --hold-out hle --out shift
    """
    from prefill_router.reporting import ROUTERS
    from prefill_router.studies import arms, report_shift, shift_study

    _check(train_on, test_on, hold_out, preset)
    wanted = partial(_shift, train_on=train_on, test_on=test_on, hold_out=hold_out, preset=preset)
    asked = {"train_on": train_on, "test_on": test_on, "hold_out": hold_out, "preset": preset}
    given = StudyRequest(config, data, to, store, split_file, seed, encoder_folder)
    opened = begin(
        "shift",
        given,
        {**asked, "resamples": resamples},
        lambda dataset, drawn: arms(dataset, drawn, wanted(dataset)),
    )
    found = shift_study(
        opened.dataset,
        opened.recipes,
        opened.states,
        opened.drawn,
        wanted(opened.dataset),
        resamples=resamples,
        seed=seed,
        folder=to / ROUTERS,
        engine=engine,
        progress=opened.bar,
    )
    require_some(found.routers, found.failed)
    made = report_shift(found, title=f"Distribution shift on {data.name}", known=opened.known)
    finish(made, to, as_json=as_json)


def _check(
    train_on: str | None, test_on: str | None, hold_out: str | None, preset: str | None
) -> None:
    from prefill_router.studies import Shift

    ways = sum((train_on is not None or test_on is not None, bool(hold_out), bool(preset)))
    if ways != 1 or (train_on is None) != (test_on is None):
        raise UsageError("give --train-on with --test-on, or --hold-out, or --preset; one of these")
    if preset:
        with reading_words():
            Shift.preset(preset)


def _shift(
    dataset: "RoutingDataset",
    *,
    train_on: str | None,
    test_on: str | None,
    hold_out: str | None,
    preset: str | None,
) -> "Shift":
    from prefill_router.studies import Shift

    if preset:
        return Shift.preset(preset)
    if hold_out:
        return Shift.hold_out(dataset, _names(hold_out))
    return Shift(_names(train_on or ""), _names(test_on or ""))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
