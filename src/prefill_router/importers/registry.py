"""The formats, defined here and nowhere else, and the one function that imports any of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, final

from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError
from prefill_router.importers import (
    llmrouterbench,
    long,
    mmlu_pro,
    nvidia,
    routellm,
    routerarena,
    routerbench,
    wide,
)
from prefill_router.importers.base import Collector, ImportReport
from prefill_router.importers.columns import Columns
from prefill_router.importers.prices import read_prices, with_prices


@final
@dataclass(frozen=True, kw_only=True)
class Format:
    """A format that can be imported.

    Attributes:
        summary: What it is, in a line.
        read: Reads its sources.
        columns: The options of `Columns` that it takes.
    """

    summary: str
    read: Callable[[Sequence[Path], Collector, Columns], None]
    columns: frozenset[str] = frozenset()


_COMMON = frozenset(
    {"prompt", "query", "benchmark", "domain", "correct", "input_tokens", "output_tokens", "cost"}
    | {"scale", "repeats"}
)

FORMATS: Final[Mapping[str, Format]] = {
    "llmrouterbench": Format(
        summary="LLMRouterBench: a results tree, a tar of it, or interchange JSON Lines",
        read=llmrouterbench.read,
    ),
    "routerbench": Format(
        summary="RouterBench: the wide table as CSV, JSON Lines or Parquet", read=routerbench.read
    ),
    "mmlu_pro": Format(
        summary="MMLU-Pro eval_results: one zip or JSON list per target", read=mmlu_pro.read
    ),
    "routellm": Format(
        summary="RouteLLM: CSV with a prompt and a boolean column per target", read=routellm.read
    ),
    "nvidia": Format(
        summary="NVIDIA LLM Router blueprint v3: a long CSV of isCorrect", read=nvidia.read
    ),
    "routerarena": Format(summary="RouterArena: JSON lists of predictions", read=routerarena.read),
    "long": Format(
        summary="your own table, a row per query and target: CSV, JSON Lines or Parquet",
        read=long.read,
        columns=_COMMON | {"target"},
    ),
    "wide": Format(
        summary="your own table, a column per target: CSV, JSON Lines or Parquet",
        read=wide.read,
        columns=_COMMON | {"targets"},
    ),
}
"""Every format by its name on the command line."""


@final
class Imported(NamedTuple):
    """What an import gives.

    Attributes:
        dataset: The dataset.
        report: What was read, kept and left out.
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
) -> Imported:
    """Read scored answers in one of the formats.

    Args:
        format: A name in `FORMATS`.
        sources: Files or folders.
        columns: Column names, for a user's own table.
        prices: A pool.yaml, a prices.csv or RouterArena's JSON; matched by target name.
        strict: Stop at the first malformed row.
        skip_malformed: Go on, however many rows are malformed.

    Raises:
        ConfigError: There is no such format, or it doesn't take these columns.
        FormatError: A source doesn't exist, nothing could be used, more than one row in a hundred
            is malformed, or, if strict, any is.
    """
    columns = columns or Columns()
    kind = _format(format, columns)
    if not sources:
        raise ConfigError("no source was named; name at least one file or folder")
    if strict and skip_malformed:
        raise ConfigError("stop at a malformed row, or skip all of them; ask for one of the two")
    listed = None if prices is None else read_prices(Path(prices))
    collector = Collector(
        strict=strict,
        skip_malformed=skip_malformed,
        scaled="scale" in kind.columns,
        averaged=columns.repeats == "mean",
    )
    kind.read([Path(source) for source in sources], collector, columns)
    dataset, report = collector.finish(format=format, sources=[str(s) for s in sources])
    if listed is None:
        return Imported(dataset, report)
    priced, notes = with_prices(dataset, listed)
    return Imported(priced, replace(report, notes=(*report.notes, *notes)))


def _format(name: str, columns: Columns) -> Format:
    if name not in FORMATS:
        raise ConfigError(f"there is no format {name!r}; the formats are {', '.join(FORMATS)}")
    surplus = sorted(set(columns.given()) - FORMATS[name].columns)
    if surplus:
        raise ConfigError(f"the format {name} has columns of its own; leave out {surplus}")
    return FORMATS[name]
