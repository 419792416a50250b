"""`prefill-router show`: a router's card."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown

from prefill_router.cli.app import app, out, print_json


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="ROUTER", help="The router's folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print what it knows as JSON.")] = False,
) -> None:
    """Check a router's folder and show its card.

    Example: prefill-router show router
    """
    from prefill_router.router import Router

    router = Router.load(folder)
    if as_json:
        record = router.record.model_dump(mode="json", exclude={"training"})
        features = router.features.to_dict()
        print_json({"pool": router.pool.to_dict(), "features": features, **record})
        return
    text = (folder / "README.md").read_text(encoding="utf-8")
    out.print(Markdown(text.split("---\n", 2)[-1]))
