"""`prefill-router keep`: the cheapest lam that keeps the best target's accuracy, guaranteed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router.cli.app import app, err, out, print_json
from prefill_router.cli.codes import Code
from prefill_router.cli.options import UnseenPart
from prefill_router.cli.usage import one_of
from prefill_router.data import RoutingDataset, read_dataset
from prefill_router.errors import DataError
from prefill_router.progress import BarProgress

if TYPE_CHECKING:
    from prefill_router.evaluation import Estimate
    from prefill_router.studies.guarantee import Guarantee


@app.command()
def keep(
    folder: Annotated[Path, typer.Argument(metavar="ROUTER", help="The router's folder.")],
    data: Annotated[Path, typer.Option(help="The dataset's folder.")],
    share: Annotated[
        float, typer.Option("--keep", help="Of the best single target's accuracy, as 0.98.")
    ] = 0.98,
    confidence: Annotated[float, typer.Option(help="Of the guarantee.")] = 0.95,
    part: UnseenPart = "test",
    best: Annotated[
        str | None,
        typer.Option(help="The best single target; by default that of the train part."),
    ] = None,
    store: Annotated[
        list[Path] | None, typer.Option(help="A store of states; may be given again.")
    ] = None,
    resamples: Annotated[int, typer.Option(help="For the intervals; 0 for none.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the resamples.")] = 0,
    encoder_folder: Annotated[
        list[Path] | None, typer.Option(help="The folder of a local encoder; may be given again.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Find the cheapest lam that keeps a share of the best single target's accuracy, guaranteed.

    The guarantee holds on queries like those of the part, which must not have been used for the
    router or for choosing it. Where no lam can be guaranteed, the exit code is 3 and the reason is
    told.

    Example: prefill-router keep router --data answers --keep 0.95
    """
    from prefill_router.activations import ActivationStore
    from prefill_router.cli.sources import sources
    from prefill_router.cli.unseen import PARTS, Unseen
    from prefill_router.evaluation import Trial
    from prefill_router.router import Router
    from prefill_router.router.states import default_cache
    from prefill_router.studies.guarantee import guarantee

    one_of("--part", part, PARTS)
    router = Router.load(folder, sources=sources(encoder_folder))
    unseen = Unseen.of(router, read_dataset(data), part)
    best = best or _best(unseen.train)
    stores = [ActivationStore.open(path) for path in store or []]
    predictions = router.predict(
        unseen.judged, stores=stores, cache=default_cache(), progress=BarProgress(console=err)
    )
    found = guarantee(
        Trial.join(predictions, unseen.judged, policy=router.policy),
        best=best,
        keep=share,
        confidence=confidence,
        resamples=resamples,
        seed=seed,
    )
    if as_json:
        print_json({"part": part, **found.to_dict()})
    else:
        _show(found)
    if found.lam is None:
        raise typer.Exit(Code.NO_GUARANTEE)


def _best(train: RoutingDataset | None) -> str:
    from prefill_router.studies.guarantee import best_single

    if train is None:
        raise DataError(
            "the dataset has none of the queries that the router was trained on, so the best "
            "single target isn't known; name it: --best TARGET"
        )
    return best_single(train)


def _show(found: "Guarantee") -> None:
    promise = (
        f"{100 * found.keep:g} % of the accuracy of {found.best}, with a confidence of "
        f"{100 * found.confidence:g} %"
    )
    if found.lam is None:
        out.print(f"none: no lam can be guaranteed to keep {promise}", soft_wrap=True)
        out.print(found.advice, soft_wrap=True)
        return
    out.print(f"lam = {found.lam:g} keeps at least {promise}", soft_wrap=True)
    left = f", {found.left_out:,} without labels left out" if found.left_out else ""
    out.print(f"tested on {found.queries:,} queries{left}")
    kept, saved = _worded(found.kept), _savings(found.savings)
    out.print(f"expected: {kept} of that accuracy, {saved}", soft_wrap=True)


def _worded(estimate: "Estimate") -> str:
    from prefill_router.evaluation.wording import interval, worded

    spread = interval(estimate, "share")
    return worded(estimate.value, "share") + (f" ({spread})" if spread else "")


def _savings(estimate: "Estimate") -> str:
    return (
        f"savings unknown: {estimate.reason}" if estimate.reason else f"{_worded(estimate)} saved"
    )
