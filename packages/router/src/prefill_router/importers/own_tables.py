"""Tables of answers: long ones, a row per query and target, and wide ones, a row per query.

Both may be the user's own. Published ones:

NVIDIA LLM Router blueprint, version 3, is a long CSV: `question`, `model` (the target),
`isCorrect`, `output_tokens` and, where published, `embedding_id`, the number of the question within
its file.

RouterBench is wide and has 11 targets: `sample_id`, `prompt`, `eval_name`, a column of scores per
target, `<target>|model_response`, `<target>|total_cost` (US dollars) and
`oracle_model_to_route_to`. A prompt is written as a Python list with one text.

RouteLLM is a wide CSV with `prompt` and one boolean column per target, as in its evaluations.
Columns that end in `_response` are answers, and columns without a name are row numbers; neither is
read. There are no ids: a query is identified by its file and prompt. The benchmark is the file's
name without `_responses`.
"""

import ast
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from prefill_router.data import MOST_COST, MOST_TOKENS, Prompt, Query, prompt_key
from prefill_router.errors import ConfigError, DataError, FormatError, name_option
from prefill_router.importers import sources, tables, values
from prefill_router.importers.builder import DatasetBuilder, TargetOutcome
from prefill_router.importers.tables import Record
from prefill_router.importers.values import TARGET, Columns, Scale
from prefill_router.targets import EFFORTS, effort_in_name, is_budget, name_with_effort

LONG_COLUMNS: Final[Mapping[str, str]] = {
    "prompt": "prompt",
    "target": "target",
    "effort": "reasoning_effort",
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
        present = tables.flat_columns_of(path)
        if names["target"] not in present and _OTHER_TARGET in present:
            names["target"] = _OTHER_TARGET
    must = {"prompt", "target", "correct", *columns.option_names()}
    needs = [name for option, name in names.items() if option in must]
    rows = tables.flat_records(path, into, needs=needs, wants=list(names.values()))
    for place, record in rows:
        with into.row(place):
            require(record, [name for name in needs if name != names["correct"] or "." not in name])
            query = query_of(record, names, id_prefix=id_prefix)
            outcomes = {
                _target_of(answer, names, into): outcome(
                    answer, *(names[option] for option in _OUTCOME), scale=columns.scale
                )
                for answer in answers_of(record, names)
            }
            into.add(place, query, outcomes)


def _target_of(answer: Record, names: Mapping[str, str], into: DatasetBuilder) -> str:
    """The name of an answer's target, with its effort where there is one.

    Raises:
        DataError: The name is empty, or the effort isn't known.
    """
    name = values.require_text(answer[names["target"]], names["target"])
    effort = read_effort(answer.get(names.get("effort", "")), names.get("effort", ""))
    if effort is None:
        return name
    in_name = effort_in_name(name)
    if in_name not in (None, effort):
        raise DataError(
            f"{name!r} has the effort {effort!r} in {names['effort']}; keep one of them"
        )
    name = name if in_name else name_with_effort(name, effort)
    into.target(name, effort=effort)
    return name


NO_EFFORT = ("default", "auto")
"""What tables write where the provider chose the effort."""


def read_effort(cell: object, column: str) -> str | None:
    """The effort in a cell; None where it is empty.

    Raises:
        DataError: It isn't known.
    """
    if cell is None or cell in ("", False, *NO_EFFORT) or cell != cell:
        return None
    whole = int(cell) if isinstance(cell, float) and cell.is_integer() else cell
    effort = str(whole).strip().lower()
    if effort not in EFFORTS and not is_budget(effort):
        raise DataError(
            f"{column} is {cell!r}; an effort is one of {', '.join(EFFORTS)}, or a number of "
            "thinking tokens"
        )
    return effort


def answers_of(record: Record, names: Mapping[str, str]) -> list[Record]:
    """A record for each target that a row names; one where it names one.

    A row may have lists: of targets, and of their scores, costs and token counts.

    Args:
        record: The row.
        names: The columns of the target and of its outcome, by option.

    Raises:
        DataError: A list hasn't as many items as there are targets, or a target is repeated.
    """
    targets = record.get(names["target"])
    if not isinstance(targets, list):
        return [record]
    if len({str(target) for target in targets}) < len(targets):
        raise DataError(f"{names['target']} names a target more than once")
    columns = [names[option] for option in ("target", "effort", *_OUTCOME) if option in names]
    lists = {name: cell for name in columns if isinstance(cell := record.get(name), list)}
    for name, cell in lists.items():
        if len(cell) != len(targets):
            raise DataError(f"{name} has {len(cell)} items, {names['target']} {len(targets)}")
    return [
        {**record, **{name: cell[number] for name, cell in lists.items()}}
        for number in range(len(targets))
    ]


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


WIDE_COLUMNS = {
    option: LONG_COLUMNS[option] for option in ("prompt", "query", "benchmark", "domain")
}
_FIRST_ROWS = 1000
_WORD = re.compile(r"[a-z]+")
_AMOUNTS = {"cost", "costs", "price", "usd", "tokens", "seconds", "latency", "time", "id", "index"}
"""Words in the names of columns that hold something other than labels."""


def read_wide(paths: Sequence[Path], into: DatasetBuilder, columns: Columns) -> None:
    """Read a user's own wide tables; if no targets are named, they are guessed, with a note.

    Raises:
        ConfigError: The targets' columns aren't named and can't be guessed.
        FormatError: A source doesn't exist.
    """
    files = sources.expand(paths, tables.SUFFIXES)
    if not columns.targets:
        columns = replace(columns, targets=_guess_targets(files[0], columns))
        into.note(
            f"used as the targets, since they hold labels: {', '.join(columns.targets)}; name "
            "others with --target-columns"
        )
    for path in files:
        with into.file(path):
            read_wide_table(path, into, columns)


def _guess_targets(path: Path, columns: Columns) -> tuple[str, ...]:
    """The columns that hold only labels in the first records of a table, as targets.

    Raises:
        ConfigError: There are none.
    """
    cells: dict[str, list[object]] = {}
    whole = tables.flat_records(
        path, DatasetBuilder(), needs=(), wants=tables.flat_columns_of(path)
    )
    for _, record in islice(whole, _FIRST_ROWS):
        for column, cell in record.items():
            cells.setdefault(column, []).append(cell)
        tables.check_count(cells, path)
    other_columns = {getattr(columns, option) or name for option, name in LONG_COLUMNS.items()}
    names = [
        name
        for name in map(columns.target_of, cells)
        if name and name not in other_columns and not _AMOUNTS & set(_WORD.findall(name.lower()))
    ]
    of_others = {column for name in names for column in columns.of_target(name)[1:]}
    label = values.label if columns.scale is None else columns.scale.label
    targets = [
        name
        for name in names
        if (column := columns.of_target(name)[0]) not in of_others
        and _are_labels(cells.get(column, ()), label)
    ]
    if not targets:
        option = name_option("--target-columns a,b,c", "columns=Columns(targets=(...))")
        raise ConfigError(
            "no column of the table holds only labels, and a wide table has one such column "
            f"per target. Name the columns with {option}; {path} has the columns "
            f"{tables.columns_of(path)}. If their scores aren't from 0 to 1, give "
            f"{values.name_scale('WORST-BEST')}"
        )
    return tuple(targets)


def _are_labels(cells: Iterable[object], label: Callable[[object, str], float | None]) -> bool:
    """Whether all cells that aren't missing are labels, and there is at least one."""
    try:
        labels = [label(cell, "") for cell in cells]
    except DataError:
        return False
    return any(label is not None for label in labels)


def read_wide_table(
    path: Path,
    into: DatasetBuilder,
    columns: Columns,
    *,
    usual: Mapping[str, str] = WIDE_COLUMNS,
    id_prefix: str = "",
    benchmark: str = "",
    as_prompt: Callable[[object, str], Prompt] = values.cell_prompt,
) -> None:
    """Read one wide table.

    Args:
        path: The table.
        into: Collects the rows.
        columns: The columns that were named, including the targets.
        usual: The usual columns, used otherwise.
        id_prefix: The prefix of every query's id.
        benchmark: The benchmark of every query, if the table has no column for it.
        as_prompt: Parses the prompt's cell.

    Raises:
        FormatError: The file isn't a table, or lacks a column.
    """
    names = {option: getattr(columns, option) or name for option, name in usual.items()}
    of_target = {name: columns.of_target(name) for name in columns.targets}
    needs = [names[option] for option in usual if option == "prompt" or getattr(columns, option)]
    needs += [
        name
        for names_of_target in of_target.values()
        for name in names_of_target
        if name is not None
    ]
    of_objects = {
        name
        for names_of_target in of_target.values()
        for name in names_of_target
        if name and "." in name
    }
    required = [name for name in needs if name not in of_objects]
    for name in columns.targets:
        into.target(name)
    rows = tables.flat_records(path, into, needs=needs, wants=list(names.values()))
    for place, record in rows:
        with into.row(place):
            require(record, required)
            cells = {names["benchmark"]: benchmark, **record}
            query = query_of(cells, names, id_prefix=id_prefix, as_prompt=as_prompt)
            outcomes = {
                name: outcome(record, *named, scale=columns.scale)
                for name, named in of_target.items()
            }
            measured = {
                name: outcome for name, outcome in outcomes.items() if outcome != TargetOutcome()
            }
            into.add(place, query, measured)


_ROUTERBENCH_COST, _ROUTERBENCH_RESPONSE = "|total_cost", "|model_response"
_ROUTERBENCH_COLUMNS = {
    "prompt": "prompt",
    "query": "sample_id",
    "benchmark": "eval_name",
    "domain": "domain",
}
_ROUTERBENCH_OTHERS = {*_ROUTERBENCH_COLUMNS.values(), "oracle_model_to_route_to", ""}


def read_routerbench(paths: Sequence[Path], into: DatasetBuilder, columns: Columns) -> None:
    """Read RouterBench tables.

    Raises:
        FormatError: A source doesn't exist.
    """
    del columns
    for path in sources.expand(paths, tables.SUFFIXES):
        with into.file(path):
            present = tables.columns_of(path)
            wide_columns = Columns(
                targets=_routerbench_targets(present, path),
                query="sample_id",
                benchmark="eval_name",
            )
            if any(column.endswith(_ROUTERBENCH_COST) for column in present):
                wide_columns = wide_columns.with_cost(f"{TARGET}{_ROUTERBENCH_COST}")
            read_wide_table(
                path, into, wide_columns, usual=_ROUTERBENCH_COLUMNS, as_prompt=_routerbench_prompt
            )


def _routerbench_targets(present: Sequence[str], path: Path) -> tuple[str, ...]:
    """The targets: columns with a cost or response column; if there are none, all the others."""
    columns = frozenset(present)
    names = [c for c in present if "|" not in c and c not in _ROUTERBENCH_OTHERS]
    with_cost = [
        c
        for c in names
        if f"{c}{_ROUTERBENCH_COST}" in columns or f"{c}{_ROUTERBENCH_RESPONSE}" in columns
    ]
    if not names:
        raise FormatError(f"has no column of a target; it has {list(present)}", file=path, line=1)
    return tuple(with_cost or names)


def _routerbench_prompt(value: object, name: str) -> Prompt:
    """The single text of a list, or of a Python list written as text; other texts unchanged."""
    if isinstance(value, str) and value.startswith(("['", '["')):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the text may contain invalid escapes
                value = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise DataError(f"{name} begins like a Python list but isn't one") from None
    if isinstance(value, list):
        if len(value) != 1:
            raise DataError(f"{name} is a list of {len(value)} items; it must hold one text")
        value = value[0]
    return values.require_text(value, name)


_ROUTELLM_RESPONSE = "_response"


def read_routellm(paths: Sequence[Path], into: DatasetBuilder, columns: Columns) -> None:
    """Read RouteLLM tables.

    Raises:
        FormatError: A source doesn't exist.
    """
    del columns
    for path in sources.expand(paths, (".csv",)):
        with into.file(path):
            benchmark = path.stem.removesuffix("_responses")
            named = Columns(targets=_routellm_targets(tables.columns_of(path), path))
            read_wide_table(path, into, named, id_prefix=f"{benchmark}-", benchmark=benchmark)


def _routellm_targets(present: Sequence[str], path: Path) -> tuple[str, ...]:
    names = [
        column
        for column in present
        if column not in ("", "prompt")
        and not column.endswith(_ROUTELLM_RESPONSE)
        and not column.startswith("Unnamed:")
    ]
    if "prompt" not in present or not names:
        raise FormatError(
            f"has the columns {list(present)}; it needs prompt and one column per target",
            file=path,
            line=1,
        )
    return tuple(names)
