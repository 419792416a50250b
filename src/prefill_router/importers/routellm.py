"""RouteLLM: CSV with `prompt` and one boolean column per target, as its evaluations keep them.

Columns that end in `_response` are answers, and columns without a name are row numbers; neither is
read. There are no ids: a query is known by its file and prompt. The file's name, without
`_responses`, is taken for the benchmark.
"""

from collections.abc import Sequence
from pathlib import Path

from prefill_router.errors import FormatError
from prefill_router.importers import sources, tables, wide
from prefill_router.importers.base import Collector
from prefill_router.importers.columns import Columns

_RESPONSE = "_response"


def read(paths: Sequence[Path], into: Collector, columns: Columns) -> None:
    """Read RouteLLM tables.

    Raises:
        FormatError: A source doesn't exist.
    """
    del columns
    for path in sources.expand(paths, (".csv",)):
        with into.file(path):
            benchmark = path.stem.removesuffix("_responses")
            named = Columns(targets=_targets(tables.columns_of(path), path))
            wide.read_table(path, into, named, id_prefix=f"{benchmark}-", benchmark=benchmark)


def _targets(present: Sequence[str], path: Path) -> tuple[str, ...]:
    names = [
        column
        for column in present
        if column not in ("", "prompt")
        and not column.endswith(_RESPONSE)
        and not column.startswith("Unnamed:")
    ]
    if "prompt" not in present or not names:
        raise FormatError(
            f"has the columns {list(present)}; it needs prompt and one column per target",
            file=path,
            line=1,
        )
    return tuple(names)
