"""The option that lets a result of another origin be replaced."""

from typing import Annotated

import typer

Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace what --out holds, even of another origin.")
]
