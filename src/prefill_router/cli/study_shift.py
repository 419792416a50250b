"""`prefill-router study shift`: what a router loses on queries of a kind it wasn't trained on."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router.cli.options import SplitFile
from prefill_router.cli.study import (
    AsJson,
    Config,
    Data,
    Folders,
    Out,
    Resamples,
    Seed,
    Stores,
    begin,
    finish,
    require_some,
    study,
)
from prefill_router.cli.usage import UsageError, reading_words

if TYPE_CHECKING:
    from prefill_router.data import RoutingDataset
    from prefill_router.studies.shift_plan import Shift


@study.command()
def shift(
    config: Config,
    data: Data,
    to: Out,
    store: Stores = None,
    train_on: Annotated[
        str | None, typer.Option(help="Benchmarks or domains to train on, between commas.")
    ] = None,
    test_on: Annotated[
        str | None, typer.Option(help="Benchmarks or domains to test on, between commas.")
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
) -> None:
    """Train on some benchmarks or domains and test on others, beside routers trained on all.

    All are tested on the same queries of the test part. One reference is trained on the whole train
    part, one on as many queries of it as the shifted router had.

    Example: prefill-router study shift routers.yaml --data answers --hold-out hle --out shift
    """
    from rich.table import Table

    from prefill_router.evaluation.wording import digits
    from prefill_router.studies.output import ROUTERS
    from prefill_router.studies.shift import shift_study
    from prefill_router.studies.shift_plan import arms
    from prefill_router.studies.shift_report import sheet

    _check(train_on, test_on, hold_out, preset)
    wanted = partial(_shift, train_on=train_on, test_on=test_on, hold_out=hold_out, preset=preset)
    asked = {"train_on": train_on, "test_on": test_on, "hold_out": hold_out, "preset": preset}
    opened = begin(
        "shift",
        config,
        data=data,
        to=to,
        store=store,
        split_file=split_file,
        seed=seed,
        encoder_folder=encoder_folder,
        asked={**asked, "resamples": resamples},
        check=lambda dataset, drawn: arms(dataset, drawn, wanted(dataset)),
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
        progress=opened.bar,
    )
    require_some(found.routers, found.failed)
    heads = ("elsewhere", "on all", "diff.", "as few", "diff.", "macro AUC")
    table = Table("router", *heads, box=None, pad_edge=False)
    for one in found.routers:
        accuracy = {arm: 100 * v["argmax_accuracy"].value for arm, v in one.numbers.items()}
        table.add_row(
            one.name,
            digits(accuracy["shifted"], ".2f"),
            digits(accuracy["reference"], ".2f"),
            digits(100 * one.loss["argmax_accuracy"].value, "+.2f"),
            digits(accuracy["equal"], ".2f"),
            digits(100 * one.loss_of_shift["argmax_accuracy"].value, "+.2f"),
            digits(one.numbers["shifted"]["auc_mean"].value, ".4f"),
        )
    made = sheet(found, title=f"Distribution shift on {data.name}", known=opened.known)
    lost = [f"{one.name} could not be fitted, {one.why}" for one in found.failed]
    finish(made, to, table=table, notes=lost, as_json=as_json)


def _check(
    train_on: str | None, test_on: str | None, hold_out: str | None, preset: str | None
) -> None:
    from prefill_router.studies.shift_plan import Shift

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
    from prefill_router.studies.shift_plan import Shift

    if preset:
        return Shift.preset(preset)
    if hold_out:
        return Shift.hold_out(dataset, _names(hold_out))
    return Shift(_names(train_on or ""), _names(test_on or ""))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
