"""The import of scored answers in any format of the registry, and the prices of its targets.

A format's reader gives its rows to a `DatasetBuilder`. The sources have no prices; these are read
from a file of their own and matched by the targets' names.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, final

from prefill_router.agents import Harnesses
from prefill_router.data import LabelMeaning, RoutingDataset
from prefill_router.errors import ConfigError, DataError, FormatError
from prefill_router.importers import sources, values
from prefill_router.importers.builder import DatasetBuilder, ImportReport
from prefill_router.importers.registry import FORMATS, Format
from prefill_router.importers.values import Columns
from prefill_router.lazy_imports import load
from prefill_router.targets import MOST_PRICE, Pool, Target, read_pool

Reader = Callable[[Sequence[Path], DatasetBuilder, Columns], None]
_INPUT, _OUTPUT = "input_token_price_per_million", "output_token_price_per_million"


def read_prices(path: Path) -> Pool:
    """Read a `pool.yaml`, a `prices.csv`, or RouterArena's JSON of prices per million tokens.

    Raises:
        FormatError: The file is missing or malformed.
    """
    if path.suffix.lower() != ".json":
        return read_pool(path)
    (document,) = sources.documents(path)
    content = sources.parse(document)
    if not isinstance(content, dict):
        raise FormatError(f"must be an object of target and {{{_INPUT}, {_OUTPUT}}}", file=path)
    try:
        return Pool(tuple(_read_target(name, entry) for name, entry in content.items()))
    except (ConfigError, DataError) as error:
        raise FormatError(str(error), file=path) from None


def with_prices(dataset: RoutingDataset, price_list: Pool) -> tuple[RoutingDataset, list[str]]:
    """Give each target of a dataset the prices and settings of the listed target.

    A target with an effort is listed by its own name, or by that of its model.

    Returns:
        The dataset, and notes on names that are in only one of the two.
    """
    pool = Pool(
        tuple(_find_listed(target, price_list) for target in dataset.pool),
        price_list.prices_date,
        price_list.providers,
    )
    names = {name for target in dataset.pool for name in (target.name, target.base)}
    unknown = [name for name in price_list.names if name not in names]
    lacking = [target.name for target in pool if not target.has_price]
    notes = []
    if unknown:
        notes.append(f"in the prices but not in the data, left out: {', '.join(unknown)}")
    if lacking:
        notes.append(f"without a price: {', '.join(lacking)}")
    return dataset.with_pool(pool), notes


def _find_listed(target: Target, listed: Pool) -> Target:
    """The listed target, with the effort of this one; this one where none is listed."""
    if target.name in listed.names:
        same = listed[target.name]
        return same if target.effort is None else replace(same, effort=target.effort)
    if target.effort is None or target.base not in listed.names:
        return target
    return listed[target.base].with_effort(target.effort)


def _read_target(name: str, entry: object) -> Target:
    if not isinstance(entry, dict):
        raise ConfigError(
            f"the entry of {name!r} is {json.dumps(entry)[:40]}; it must be an object"
        )
    return Target(
        name=values.require_text(name, "a target's name"),
        input_price=values.cell_amount(entry.get(_INPUT), _INPUT, most=MOST_PRICE),
        output_price=values.cell_amount(entry.get(_OUTPUT), _OUTPUT, most=MOST_PRICE),
    )


@final
class Imported(NamedTuple):
    """The result of an import.

    Attributes:
        dataset: The dataset.
        report: The report of what was read, kept and left out.
    """

    dataset: RoutingDataset
    report: ImportReport


def import_dataset(
    format: str,  # noqa: A002
    sources: Sequence[Path | str],
    *,
    columns: Columns | None = None,
    prices: Path | str | None = None,
    strict: bool = False,
    skip_malformed: bool = False,
    harnesses: Harnesses | None = None,
) -> Imported:
    """Read scored answers in one of the formats.

    Args:
        format: A name in `FORMATS`.
        sources: Files or folders.
        columns: Column names, for a user's own table.
        prices: A pool.yaml, a prices.csv or RouterArena's JSON; matched by target name.
        strict: Whether to stop at the first malformed row.
        skip_malformed: Whether to continue, however many rows are malformed.
        harnesses: The marks of agents, by which the asks in logs of calls are read; those of this
            package if not given.

    Raises:
        ConfigError: There is no such format, or it has no such column options.
        FormatError: A source doesn't exist, nothing could be used, more than one row in a hundred
            is malformed, or, if strict, any is.
    """
    columns = columns or Columns()
    kind = _find_format(format, columns)
    if not sources:
        raise ConfigError("no source was named; name at least one file or folder")
    if strict and skip_malformed:
        raise ConfigError("strict and skip_malformed contradict each other; choose one")
    price_list = None if prices is None else read_prices(Path(prices))
    collector = DatasetBuilder(
        strict=strict,
        skip_malformed=skip_malformed,
        scaled="scale" in kind.columns,
        averaged=kind.averaged or columns.repeats == "mean",
        harnesses=harnesses,
    )
    read: Reader = load("prefill_router.importers", kind.reader)
    read([Path(source) for source in sources], collector, columns)
    dataset, report = collector.finish(format=format, sources=[str(s) for s in sources])
    if kind.is_votes:
        dataset = replace(dataset, meaning=LabelMeaning(kind="vote"))
    elif columns.scale is not None:
        dataset = replace(dataset, meaning=columns.scale.meaning)
    if price_list is None:
        return Imported(dataset, report)
    priced, notes = with_prices(dataset, price_list)
    return Imported(priced, replace(report, notes=(*report.notes, *notes)))


def check_choice(dataset: RoutingDataset, format: str) -> None:  # noqa: A002
    """Check that scored answers are of two targets or more; a log may be of one.

    Args:
        dataset: What was imported.
        format: The name in `FORMATS` by which it was read.

    Raises:
        ConfigError: They are of one.
    """
    kind = FORMATS[format]
    if len(dataset.pool) > 1 or kind.is_log:
        return
    raise ConfigError(
        f"the answers are all of one target, {dataset.pool.names[0]!r}; a router chooses between "
        f"two or more. Looked for the targets of {kind.summary}. Give the files of all targets "
        "together, or the folder that holds them"
    )


def _find_format(name: str, columns: Columns) -> Format:
    if name not in FORMATS:
        raise ConfigError(f"there is no format {name!r}; the formats are {', '.join(FORMATS)}")
    surplus = sorted(set(columns.option_names()) - FORMATS[name].columns)
    if surplus:
        raise ConfigError(f"the format {name} has fixed columns; leave out {surplus}")
    return FORMATS[name]
