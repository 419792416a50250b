"""Wide tables: one row per query, one column of labels per target."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from prefill_router.data import Prompt
from prefill_router.errors import ConfigError
from prefill_router.importers import long, sources, tables, values
from prefill_router.importers.base import Collector, Outcome
from prefill_router.importers.columns import Columns

USUAL = {option: long.USUAL[option] for option in ("prompt", "query", "benchmark", "domain")}


def read(paths: Sequence[Path], into: Collector, columns: Columns) -> None:
    """Read a user's own wide tables.

    Raises:
        ConfigError: The targets' columns aren't named.
        FormatError: A source doesn't exist.
    """
    found = sources.expand(paths, tables.SUFFIXES)
    if not columns.targets:
        raise ConfigError(
            "a wide table has one column per target; name them with --target-columns a,b,c "
            f"({found[0]} has the columns {tables.columns_of(found[0])})"
        )
    for path in found:
        with into.file(path):
            read_table(path, into, columns)


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
            outcomes = {name: long.outcome(record, *named) for name, named in of_target.items()}
            measured = {name: found for name, found in outcomes.items() if found != Outcome()}
            into.add(place, query, measured)
