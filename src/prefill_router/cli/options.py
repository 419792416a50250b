"""Options that several commands have, spelt and told alike in all of them."""

from pathlib import Path
from typing import Annotated

import typer

SplitFile = Annotated[
    Path | None,
    typer.Option("--split", metavar="FILE", help="A split drawn before; else one is drawn."),
]
Lam = Annotated[float, typer.Option("--lam", help="From 0, cheapest, to 1, most probably correct.")]
UnseenPart = Annotated[
    str,
    typer.Option(
        "--part",
        metavar="NAME",
        help="test or calibration of the router's split, or unseen: all queries of the dataset "
        "that it was neither trained nor calibrated on.",
    ),
]
