"""One command per stage, each a thin call of one library function.

A command is a file of this package that decorates its function with `app.command`; the table in
`cli.commands` puts it on the command line. Other distributions add theirs, with the same tools.
Heavy imports (torch, matplotlib) belong inside the command's function, so that its `--help` answers
at once.
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
