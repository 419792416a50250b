"""Long tables, one row per query and target: the user's own, and those of NVIDIA's LLM Router.

NVIDIA LLM Router blueprint, version 3, is a long CSV: `question`, `model` (the target),
`isCorrect`, `output_tokens` and, where published, `embedding_id`, the number of the question within
its file.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from prefill_router.data import MOST_COST, MOST_TOKENS, Prompt, Query, prompt_key
from prefill_router.errors import DataError
from prefill_router.importers import sources, tables, values
from prefill_router.importers.builder import DatasetBuilder, TargetOutcome
from prefill_router.importers.columns import Columns, Scale
from prefill_router.importers.tables import Record

LONG_COLUMNS: Final[Mapping[str, str]] = {
    "prompt": "prompt",
    "target": "target",
    "correct": "correct",
    "query": "query_id",
    "benchmark": "benchmark",
    "domain": "domain",
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cost": "cost",
}
"""The usual column names of each option, used if no column is named."""
_OTHER_TARGET: Final = "model"
_OUTCOME: Final = ("correct", "input_tokens", "output_tokens", "cost")


def read_long(paths: Sequence[Path], into: DatasetBuilder, columns: Columns) -> None:
    """Read a user's own long tables.

    Raises:
        FormatError: A source doesn't exist.
    """
    for path in sources.expand(paths, tables.SUFFIXES):
        with into.file(path):
            read_long_table(path, into, columns)


def read_long_table(
    path: Path,
    into: DatasetBuilder,
    columns: Columns,
    *,
    usual: Mapping[str, str] = LONG_COLUMNS,
    id_prefix: str = "",
) -> None:
    """Read one long table.

    Args:
        path: The table.
        into: Collects the rows.
        columns: The columns that were named.
        usual: The usual columns, used otherwise.
        id_prefix: The prefix of every query's id.

    Raises:
        FormatError: The file isn't a table, or lacks a column.
    """
    names = {option: getattr(columns, option) or name for option, name in usual.items()}
    if columns.target is None and names["target"] == LONG_COLUMNS["target"]:
        present = tables.columns_of(path)
        if names["target"] not in present and _OTHER_TARGET in present:
            names["target"] = _OTHER_TARGET
    must = {"prompt", "target", "correct", *columns.given()}
    needs = [name for option, name in names.items() if option in must]
    for place, record in tables.records(path, into, needs=needs, wants=list(names.values())):
        with into.row(place):
            require(record, needs)
            query = query_of(record, names, id_prefix=id_prefix)
            target = values.filled_text(record[names["target"]], names["target"])
            found = outcome(record, *(names[option] for option in _OUTCOME), scale=columns.scale)
            into.add(place, query, {target: found})


def require(record: Record, needs: Sequence[str]) -> None:
    """Check that a record has these fields.

    Raises:
        DataError: A field is missing.
    """
    lacking = [name for name in needs if name not in record]
    if lacking:
        raise DataError(f"lacks {lacking}")


def query_of(
    record: Record,
    names: Mapping[str, str],
    *,
    id_prefix: str = "",
    as_prompt: Callable[[object, str], Prompt] = values.cell_prompt,
) -> Query:
    """The query of a record; without an id it is identified by its prompt.

    Raises:
        DataError: A cell is malformed.
    """
    prompt = as_prompt(record[names["prompt"]], names["prompt"])
    if names["query"] in record:
        query_id = values.identifier(record[names["query"]], names["query"])
    else:
        query_id = prompt_key(prompt)[:16]
    return Query(
        f"{id_prefix}{query_id}",
        prompt,
        values.label_text(record.get(names["benchmark"]), names["benchmark"]),
        values.label_text(record.get(names["domain"]), names["domain"]),
    )


def outcome(
    record: Record,
    correct: str,
    input_tokens: str | None,
    output_tokens: str | None,
    cost: str | None,
    *,
    scale: Scale | None = None,
) -> TargetOutcome:
    """The outcome of one target in a record.

    Raises:
        DataError: A cell is malformed.
    """
    counts = [
        None if name is None else values.cell_amount(record.get(name), name, most=most)
        for name, most in (
            (input_tokens, MOST_TOKENS),
            (output_tokens, MOST_TOKENS),
            (cost, MOST_COST),
        )
    ]
    label = values.label if scale is None else scale.label
    return TargetOutcome(label(record.get(correct), correct), *counts)


_NVIDIA_COLUMNS = {
    **LONG_COLUMNS,
    "prompt": "question",
    "target": "model",
    "correct": "isCorrect",
    "query": "embedding_id",
}


def read_nvidia(paths: Sequence[Path], into: DatasetBuilder, columns: Columns) -> None:
    """Read the blueprint's tables; ids of questions get the file's name as a prefix.

    Raises:
        FormatError: A source doesn't exist.
    """
    del columns
    for path in sources.expand(paths, (".csv",)):
        with into.file(path):
            read_long_table(path, into, Columns(), usual=_NVIDIA_COLUMNS, id_prefix=f"{path.stem}-")
