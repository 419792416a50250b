"""`prefill-router show`: a router's card."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from prefill_router.cli.app import app, err, out, print_json

if TYPE_CHECKING:
    from prefill_router.router import Router


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
        pool = router.pool.public().to_dict()
        output = None if router.output is None else router.output.to_dict()
        parts = {"features": features, "shrinkage": shrinkage, "output": output}
        print_json({"pool": pool, **parts, **record})
        return
    text = (folder / "README.md").read_text(encoding="utf-8")
    out.print(Markdown(text.split("---\n", 2)[-1]))
    _show_endpoints(router)


def _show_endpoints(router: "Router") -> None:
    """Whom the folder names; the card, which anybody can edit, isn't asked."""
    from prefill_router.encoders import EncoderName
    from prefill_router.encoders.address import Address
    from prefill_router.encoders.embeddings_api import KEY

    pool = router.pool.public()
    served = [t.name for t in pool if t.provider is not None or t.base_url is not None]
    rows = [(name, p.base_url, p.api_key_env) for name in served if (p := pool.provider_of(name))]
    for provenance in router.features.provenances:
        name = EncoderName.parse(provenance.encoder)
        if name.scheme == "endpoint":
            rows.append(("the encoder", Address.parse(name.place).base_url, KEY))
    if not rows:
        return
    out.print("Endpoints that it names. None is asked unless you name it yourself:")
    table = Table(box=None, pad_edge=False)
    for title in ("target", "address", "variable of its key"):
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell or "-") for cell in row))
    out.print(table)
