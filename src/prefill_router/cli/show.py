"""`prefill-router show`: a router's card."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown

from prefill_router.cli.app import app, err, out, print_json


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="ROUTER", help="The router's folder.")],
    curves: Annotated[
        Path | None, typer.Option(help="A folder to draw the training curves into.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what it knows as JSON.")] = False,
) -> None:
    """Check a router's folder and show its card.

    Example: prefill-router show router
    """
    from prefill_router.router import Router

    router = Router.load(folder)
    if curves is not None:
        from prefill_router.predictors import TrainingCurves
        from prefill_router.predictors.trunk.drawing import write_curves

        written = write_curves(TrainingCurves.from_dict(router.record.training), curves)
        err.print(f"training curves: {', '.join(map(str, written))}", markup=False)
    if as_json:
        record = router.record.model_dump(mode="json", exclude={"training"})
        features = router.features.to_dict()
        shrinkage = None if router.shrinkage is None else router.shrinkage.to_dict()
        told = {"pool": router.pool.to_dict(), "features": features, "shrinkage": shrinkage}
        print_json({**told, **record})
        return
    text = (folder / "README.md").read_text(encoding="utf-8")
    out.print(Markdown(text.split("---\n", 2)[-1]))
