"""`prefill-router merge`: several datasets as one."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, final

import typer

from prefill_router.cli.app import app, out, print_json
from prefill_router.cli.import_ import REPEATS
from prefill_router.cli.overwrite import Overwrite
from prefill_router.cli.usage import one_of


@final
class Preferred(StrEnum):
    """Which dataset counts where two contradict each other."""

    FIRST = "first"
    LAST = "last"


@app.command(name="merge")
def merge_command(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DATA...", help="Two or more dataset folders.")
    ],
    to: Annotated[Path, typer.Option("--out", help="The dataset folder to write.")],
    prefer: Annotated[
        Preferred | None,
        typer.Option(help="Whose labels and prices count where datasets contradict each other."),
    ] = None,
    repeats: Annotated[
        str | None,
        typer.Option(help="The datasets are runs of the same questions: mean."),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Join datasets by the ids of their queries and the names of their targets.

    What none of them measured is missing. Labels or prices that contradict each other are refused,
    unless --prefer says which ones count, or --repeats mean that they are runs of the same
    questions, each label the mean of those that have it.

    Example: prefill-router merge answers more --out both
    """
    from prefill_router.data import Origin, merge, read_dataset, summarise, write_dataset
    from prefill_router.data.storage import check_replaceable

    averaged = None if repeats is None else one_of("--repeats", repeats, REPEATS)
    origin = Origin.of("merge", *folders)
    check_replaceable(to, origin=origin, overwrite=overwrite)
    datasets = {str(folder): read_dataset(folder) for folder in folders}
    merged = merge(
        datasets,
        prefer=None if prefer is None else prefer.value,
        repeats=averaged,
    )
    write_dataset(merged, to, origin=origin)
    whole = summarise(merged).whole
    if as_json:
        print_json({"out": str(to), "dataset": whole.to_dict()})
        return
    labels, missing = (sum(getattr(t, n) for t in whole.targets) for n in ("measured", "missing"))
    out.print(
        f"{to}: {whole.queries:,} queries, {len(whole.targets)} targets, {labels:,} labels, "
        f"{missing:,} missing",
        soft_wrap=True,
    )
