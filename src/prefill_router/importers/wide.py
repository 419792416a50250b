"""Wide tables: one row per query, one column of labels per target."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from prefill_router.data import Prompt
from prefill_router.errors import ConfigError, DataError
from prefill_router.importers import long, sources, tables, values
from prefill_router.importers.base import Collector, Outcome, Place
from prefill_router.importers.columns import Columns

USUAL = {option: long.USUAL[option] for option in ("prompt", "query", "benchmark", "domain")}
_READ_FIRST = 1000
_WORD = re.compile(r"[a-z]+")
_AMOUNTS = {"cost", "costs", "price", "usd", "tokens", "seconds", "latency", "time", "id", "index"}
"""Words in the names of columns that say something else of an answer than whether it is right."""


def read(paths: Sequence[Path], into: Collector, columns: Columns) -> None:
    """Read a user's own wide tables; targets that aren't named are guessed, and that is told.

    Raises:
        ConfigError: The targets' columns are neither named nor to be guessed.
        FormatError: A source doesn't exist.
    """
    found = sources.expand(paths, tables.SUFFIXES)
    if not columns.targets:
        columns = replace(columns, targets=_guessed(found[0], columns))
        into.note(
            f"taken for the targets, since they hold labels: {', '.join(columns.targets)}; name "
            "others with --target-columns"
        )
    for path in found:
        with into.file(path):
            read_table(path, into, columns)


def _guessed(path: Path, columns: Columns) -> tuple[str, ...]:
    """The targets whose column of labels holds labels alone, in the first records of a table.

    Raises:
        ConfigError: There is none.
    """
    cells: dict[str, list[object]] = {}
    for _, record in islice(_whole(path), _READ_FIRST):
        for column, cell in record.items():
            cells.setdefault(column, []).append(cell)
        tables.check_count(cells, path)
    beside = {getattr(columns, option) or name for option, name in long.USUAL.items()}
    names = [
        name
        for name in map(columns.target_of, cells)
        if name and name not in beside and not _AMOUNTS & set(_WORD.findall(name.lower()))
    ]
    of_others = {column for name in names for column in columns.of_target(name)[1:]}
    label = values.label if columns.scale is None else columns.scale.label
    found = [
        name
        for name in names
        if (column := columns.of_target(name)[0]) not in of_others
        and _are_labels(cells.get(column, ()), label)
    ]
    if not found:
        raise ConfigError(
            "a wide table has one column per target; none holds labels alone, so name them with "
            f"--target-columns a,b,c ({path} has the columns {tables.columns_of(path)}), and the "
            "scale of their scores, where that isn't 0 to 1, with --scale WORST-BEST"
        )
    return tuple(found)


def _whole(path: Path) -> Iterator[tuple[Place, tables.Record]]:
    return tables.records(path, Collector(), needs=(), wants=tables.columns_of(path))


def _are_labels(cells: Iterable[object], label: Callable[[object, str], float | None]) -> bool:
    """Whether cells are labels, as far as they aren't missing; some must be there."""
    try:
        labels = [label(cell, "") for cell in cells]
    except DataError:
        return False
    return any(found is not None for found in labels)


def read_table(
    path: Path,
    into: Collector,
    columns: Columns,
    *,
    usual: Mapping[str, str] = USUAL,
    id_prefix: str = "",
    benchmark: str = "",
    as_prompt: Callable[[object, str], Prompt] = values.prompt,
) -> None:
    """Read one wide table.

    Args:
        path: The table.
        into: Takes the rows.
        columns: The columns that were named, the targets among them.
        usual: The columns that are looked for otherwise.
        id_prefix: Begins every query's id.
        benchmark: Of every query, where the table has no column for it.
        as_prompt: Understands the prompt's cell.

    Raises:
        FormatError: It isn't a table, or lacks a column.
    """
    names = {option: getattr(columns, option) or name for option, name in usual.items()}
    of_target = {name: columns.of_target(name) for name in columns.targets}
    needs = [names[option] for option in usual if option == "prompt" or getattr(columns, option)]
    needs += [name for named in of_target.values() for name in named if name is not None]
    for name in columns.targets:
        into.target(name)
    for place, record in tables.records(path, into, needs=needs, wants=list(names.values())):
        with into.row(place):
            long.require(record, needs)
            cells = {names["benchmark"]: benchmark, **record}
            query = long.query_of(cells, names, id_prefix=id_prefix, as_prompt=as_prompt)
            outcomes = {
                name: long.outcome(record, *named, scale=columns.scale)
                for name, named in of_target.items()
            }
            measured = {name: found for name, found in outcomes.items() if found != Outcome()}
            into.add(place, query, measured)
