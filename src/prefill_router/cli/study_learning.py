"""`prefill-router study learning`: quality against labelled queries and measured targets."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router.cli.engine_options import with_engine
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
    StudyRequest,
    begin,
    finish,
    study,
)
from prefill_router.cli.usage import UsageError

if TYPE_CHECKING:
    from prefill_router.engines import Engine
    from prefill_router.studies.learning import Size

FITS = "fits"
"""The subfolder of a study that keeps the predictions of each fit."""


@study.command()
@with_engine
def learning(
    config: Config,
    data: Data,
    to: Out,
    store: Stores = None,
    shares: Annotated[
        str | None, typer.Option(help="Shares of the labelled queries, such as 0.1,0.3,1.")
    ] = None,
    measured: Annotated[
        str | None, typer.Option(help="Labelled targets per query, such as 1,2,4.")
    ] = None,
    draws: Annotated[int, typer.Option(help="How often each size is drawn and fitted.")] = 3,
    split_file: SplitFile = None,
    resamples: Resamples = 200,
    seed: Seed = 0,
    encoder_folder: Folders = None,
    as_json: AsJson = False,
    engine: "Engine | None" = None,
) -> None:
    """Fit each router on fewer labels and say whether more of them would help, and which.

    Fewer labels are fewer queries, or all queries with fewer labelled targets each. By default,
    sizes are chosen so that both ways have the same numbers of labels.

    Example: prefill-router study learning routers.yaml --data answers --out learning
    """
    from prefill_router.studies.learning import NAME, LearningPlan, report_of, study_learning

    sizes = _sizes(shares, measured)
    plan = LearningPlan(sizes=sizes, draws=draws, resamples=resamples, seed=seed)
    given = StudyRequest(config, data, to, store, split_file, seed, encoder_folder)
    opened = begin(
        NAME,
        given,
        {"shares": shares, "measured": measured, "draws": draws, "resamples": resamples},
    )
    found = study_learning(
        opened.dataset,
        opened.recipes,
        opened.states,
        opened.drawn,
        plan=plan,
        folder=_fits(to),
        engine=engine,
        progress=opened.bar,
    )
    made = report_of(found, title=f"Learning curves on {data.name}", known=opened.known)
    finish(made, to, as_json=as_json)


def _fits(to: Path) -> Path:
    folder = to / FITS
    folder.mkdir(exist_ok=True)
    return folder


def _sizes(shares: str | None, measured: str | None) -> "tuple[Size, ...]":
    from prefill_router.studies.learning import Size

    given = [Size(number) for number in _numbers("--shares", shares)]
    for number in _numbers("--measured", measured):
        if number != int(number):
            raise UsageError(f"--measured has {number:g}; it must be whole numbers")
        given.append(Size(measured=int(number)))
    return tuple(given)


def _numbers(option: str, text: str | None) -> list[float]:
    try:
        return [float(part) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        raise UsageError(f"{option} is {text!r}; it must be numbers separated by commas") from None
