"""`prefill-router compare`: any set of routers, side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from prefill_router.cli.app import app, err, out, print_json
from prefill_router.cli.options import SplitFile
from prefill_router.cli.overwrite import Overwrite, check_origin
from prefill_router.progress import BarProgress

if TYPE_CHECKING:
    from prefill_router.reports.compare import Plan, Result

_COLUMNS = {
    "auc_mean": "mean AUC",
    "choice_auc": "choice AUC",
    "brier_mean": "Brier",
    "argmax_accuracy": "lam 1",
    "chosen_accuracy": "chosen lam",
    "savings": "saved",
    "p_auccc": "P-AUCCC",
}


@app.command()
def compare(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG", help="A YAML file with routers, or: all, the packaged list."
        ),
    ],
    data: Annotated[Path, typer.Option(help="The dataset's folder.")],
    to: Annotated[Path, typer.Option("--out", help="The report's folder.")],
    store: Annotated[
        list[Path] | None, typer.Option(help="A store of states; may be given again.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="Compare with this router; the first by default.")
    ] = None,
    split_file: SplitFile = None,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples; 0 for none.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the split, the training and the resamples.")] = 0,
    encoder_folder: Annotated[
        list[Path] | None, typer.Option(help="The folder of a local encoder; may be given again.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print compare.json.")] = False,
) -> None:
    """Fit routers of several recipes on one split and lay them side by side.

    Every fitted router is kept in the report's folder; interrupted, the same command goes on from
    there. States that no store holds are encoded on the way and kept in the cache.

    Example: prefill-router compare all --data answers --store states --out comparison
    """
    from prefill_router.activations import ActivationStore
    from prefill_router.cli.sources import sources
    from prefill_router.data import Origin, load_split, read_dataset
    from prefill_router.fitting import gather
    from prefill_router.reports.compare import STUDY, Plan, draw_for, recipes_of, run_plan, write
    from prefill_router.reports.compare.report import to_dict
    from prefill_router.studies.output import ROUTERS, check_place, mark

    check_place(to, STUDY)
    origin = Origin.of("compare", data)
    check_origin(to, origin, overwrite=overwrite)
    recipes = recipes_of(config)
    dataset = read_dataset(data)
    drawn = draw_for(recipes, dataset, seed=seed) if split_file is None else load_split(split_file)
    plan = Plan(recipes, reference or next(iter(recipes)), drawn, resamples, seed)
    bar = BarProgress(console=err)
    needs = tuple(need for recipe in recipes.values() for need in recipe.needs)
    stores = [ActivationStore.open(path) for path in store or []]
    mark(to, STUDY, plan.to_dict())
    origin.write(to)
    states = gather(needs, dataset, stores, sources=sources(encoder_folder), progress=bar)
    result = run_plan(plan, dataset, states, folder=to / ROUTERS, progress=bar)
    write(result, to, title=f"Routers on {data.name}", known=_known(plan, data))
    if as_json:
        print_json(to_dict(result))
        return
    _show(result)
    out.print(f"report: {to / 'index.html'}", soft_wrap=True)


def _known(plan: "Plan", data: Path) -> dict[str, str]:
    sizes = ", ".join(f"{len(ids):,} {part}" for part, ids in plan.drawn.parts.items())
    return {
        "dataset": str(data),
        "queries": sizes,
        "split": f"seed {plan.drawn.seed}; fitted on train alone, calibrated on calibration",
        "intervals": f"95 %, {plan.resamples:,} bootstrap resamples of the test queries",
        "reference": plan.reference,
    }


def _show(result: "Result") -> None:
    from prefill_router.evaluation.catalogue import HEADLINE
    from prefill_router.evaluation.wording import worded
    from prefill_router.reports.compare.drawing import by_number
    from prefill_router.reports.compare.page import sure, verdict

    table = Table(box=None, pad_edge=False)
    table.add_column("router")
    for title in _COLUMNS.values():
        table.add_column(title, justify="right")
    marks = {"better": "+", "worse": "-", "": " "}
    for one in by_number(result.routers, "auc_mean"):
        cells = [
            worded(one.headline[name].value, HEADLINE[name].unit) + marks[sure(one.against, name)]
            for name in _COLUMNS
        ]
        table.add_row(one.name, *cells)
    out.print(table)
    out.print(f"+ surely better, - surely worse than {result.plan.reference}", style="dim")
    for failed in result.failed:
        err.print(f"{failed.name} could not be fitted: {failed.why}", soft_wrap=True)
    for line in verdict(result):
        out.print(line)
    lost = result.beaten_by_constant
    if lost:
        out.print(f"not surely better than a constant: {', '.join(lost)}")
