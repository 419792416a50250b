"""RouterBench: a wide table of 11 targets.

`sample_id`, `prompt`, `eval_name`, a column of scores per target, `<target>|model_response`,
`<target>|total_cost` (US dollars) and `oracle_model_to_route_to`. A prompt is written as a Python
list that holds one text.
"""

import ast
import warnings
from collections.abc import Sequence
from pathlib import Path

from prefill_router.data import Prompt
from prefill_router.errors import DataError, FormatError
from prefill_router.importers import sources, tables, values, wide
from prefill_router.importers.base import Collector
from prefill_router.importers.columns import TARGET, Columns

_COST, _RESPONSE = "|total_cost", "|model_response"
_USUAL = {"prompt": "prompt", "query": "sample_id", "benchmark": "eval_name", "domain": "domain"}
_ABOUT = {*_USUAL.values(), "oracle_model_to_route_to", ""}


def read(paths: Sequence[Path], into: Collector, columns: Columns) -> None:
    """Read RouterBench tables.

    Raises:
        FormatError: A source doesn't exist.
    """
    del columns
    for path in sources.expand(paths, tables.SUFFIXES):
        with into.file(path):
            present = tables.columns_of(path)
            named = Columns(
                targets=_targets(present, path), query="sample_id", benchmark="eval_name"
            )
            if any(column.endswith(_COST) for column in present):
                named = named.with_cost(f"{TARGET}{_COST}")
            wide.read_table(path, into, named, usual=_USUAL, as_prompt=_prompt)


def _targets(present: Sequence[str], path: Path) -> tuple[str, ...]:
    """The targets: columns with a cost or a response beside them; failing that, all the others."""
    there = frozenset(present)
    names = [c for c in present if "|" not in c and c not in _ABOUT]
    beside = [c for c in names if f"{c}{_COST}" in there or f"{c}{_RESPONSE}" in there]
    if not names:
        raise FormatError(f"has no column of a target; it has {list(present)}", file=path, line=1)
    return tuple(beside or names)


def _prompt(value: object, name: str) -> Prompt:
    """The one text of a list, or of the text of a Python list; any other text as it stands."""
    if isinstance(value, str) and value.startswith(("['", '["')):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the text may hold escapes that Python frowns at
                value = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise DataError(f"{name} begins as a Python list and isn't one") from None
    if isinstance(value, list):
        if len(value) != 1:
            raise DataError(f"{name} is a list of {len(value)}; it must hold one text")
        value = value[0]
    return values.filled_text(value, name)
