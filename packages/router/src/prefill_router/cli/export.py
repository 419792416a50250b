"""`prefill-router export`: writes a router in another project's format."""

from pathlib import Path
from typing import Annotated

import typer

from prefill_router.cli import options as opt
from prefill_router.cli.application import app, err, out, print_json


@app.command()
def export(
    folder: opt.RouterFolder,
    switchyard: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Write the router as a prefill checkpoint of NVIDIA's Switchyard.",
        ),
    ],
    overwrite: opt.Overwrite = False,
    as_json: opt.AsJson = False,
) -> None:
    """Write a router in another project's format.

    Example: prefill-router export router --switchyard router.pt
    """
    from prefill_router.router import Router, switchyard_bytes

    router = Router.load(folder)
    content = switchyard_bytes(router)
    with opt.replacing(switchyard, overwrite=overwrite) as temporary:
        temporary.write_bytes(content)
    [source] = router.features.sources
    made_by = source.provenance
    if as_json:
        encoder = {"encoder": made_by.encoder, "revision": made_by.revision}
        print_json({"file": str(switchyard), "targets": list(router.pool.names), **encoder})
        return
    out.say(
        f"{switchyard}: {len(router.pool)} targets; it takes the most probable one, as lam = 1 does"
    )
    err.say(
        f"note: Switchyard loads the encoder {made_by.encoder!r} in whatever revision is there; "
        f"this router was fitted on {made_by.revision}"
    )
    if (made_by.dtype, source.rounding) != ("float32", "float32"):
        err.say(
            f"note: its states were computed in {made_by.dtype} and kept in {source.rounding}; "
            "Switchyard computes in float32 on a CPU, so probabilities differ slightly"
        )
