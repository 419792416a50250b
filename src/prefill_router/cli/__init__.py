"""One command per stage, each a thin call of one library function.

A command is a file of this package that decorates its function with `app.command`; the table in
`cli.commands` puts it on the command line. Heavy imports (torch, matplotlib) belong inside the
command's function, so that its `--help` answers at once.
"""

from prefill_router.cli.application import app, main

__all__ = ["app", "main"]
