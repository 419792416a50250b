"""The dataset on disk: a folder of `queries.parquet`, `outcomes.parquet` and a pool file.

`queries.parquet`
    `query_id` (text); `prompt` (text) or `messages` (list of {role, content}), or both, where a row
    with messages is a chat; optional `benchmark`, `domain` (or `category`) and `conversation`.
`outcomes.parquet`
    One row per measured (query, target): `query_id`, `target`, `correct` (boolean or a number in
    [0, 1], null where not graded), optional `input_tokens`, `output_tokens`, `cost` (US dollars),
    and those of `OPTIONAL_TABLES`, null where the dataset has NaN.
`pool.yaml`, or `prices.csv`
    See `prefill_router.targets`. Without either, the pool is the targets in the outcomes, without
    prices.
`labels.json`
    What the labels mean, see `LabelMeaning`; without it they say right or wrong.
`SHA256SUMS`, `origin.json`
    Checksums of the files above, and their origin; folders without them can be read too.
"""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.exceptions import PanicException, PolarsError

from prefill_router import files
from prefill_router.data.dataset import (
    OPTIONAL_TABLES,
    Message,
    Prompt,
    Query,
    RoutingDataset,
    Table,
    missing_table,
    prompt_text,
)
from prefill_router.data.folder import FILE as ORIGIN, Origin
from prefill_router.data.meaning import FILE as MEANING, LabelMeaning
from prefill_router.errors import DataError, FormatError, PromptError
from prefill_router.remote import (
    PathOrUrl,
    check_place,
    find_files,
    is_free,
    reading,
    replacing_folder,
)
from prefill_router.targets import Pool, Target, read_pool, write_pool

QUERIES = "queries.parquet"
OUTCOMES = "outcomes.parquet"
POOL_FILES = ("pool.yaml", "prices.csv")
_NUMBERS = {
    "correct": "correct",
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cost": "recorded_cost",
}
_COLUMNS = _NUMBERS | {name: name for name in OPTIONAL_TABLES}


def read_dataset(folder: PathOrUrl | str) -> RoutingDataset:
    """Read a dataset folder, on the disk or at a URL.

    Raises:
        ConfigError: The URL can't be read.
        FormatError: A file is missing, malformed or truncated, or lacks a column.
        CorruptError: The folder has checksums, and a file doesn't match them.
        DataError: It is a router, ids repeat, outcomes name unknown queries or targets, or labels
            leave [0, 1].
    """
    names = (QUERIES, OUTCOMES, *POOL_FILES, MEANING, files.CHECKSUMS)
    with reading(folder, names) as local:
        if (local / "router.json").is_file():
            raise _no_dataset(local / QUERIES)
        _verify_folder(local)
        queries = read_queries(local / QUERIES)
        outcomes = _read_parquet(local / OUTCOMES, needs=("query_id", "target", "correct"))
        pool = _read_pool_of(local, outcomes)
        tables = _read_tables(outcomes, queries, pool, local / OUTCOMES)
        return RoutingDataset(queries, pool, **tables, meaning=LabelMeaning.read(local))


def write_dataset(
    dataset: RoutingDataset,
    folder: PathOrUrl | str,
    *,
    also: Callable[[Path], None] | None = None,
    origin: Origin | None = None,
) -> None:
    """Write a dataset folder, whole or not at all; a dataset that was there before is replaced.

    Args:
        dataset: The dataset.
        folder: The folder to write.
        also: Writes further files into the folder before it is moved into place.
        origin: The origin of the dataset.

    Raises:
        DataError: The folder exists and isn't a dataset, or a text can't be written.
        ConfigError, StoreError: The URL can't be written, or was written by another meanwhile.
    """
    check_replaceable(folder)
    _refuse_unwritable(dataset)
    with replacing_folder(folder) as temporary:
        _write_parquet(_queries_frame(dataset), temporary / QUERIES)
        _write_parquet(_outcomes_frame(dataset), temporary / OUTCOMES)
        write_pool(dataset.pool.public(), temporary / POOL_FILES[0])
        dataset.meaning.write(temporary)
        files.write_checksums(temporary, [QUERIES, OUTCOMES, POOL_FILES[0]])
        if origin is not None:
            origin.write(temporary)
        if also is not None:
            also(temporary)


def check_replaceable(
    folder: PathOrUrl | str, *, origin: Origin | None = None, overwrite: bool = False
) -> None:
    """Check that a dataset may be written here; worth doing before long work.

    Args:
        folder: The folder to write.
        origin: Only a dataset of the same origin may be replaced; None for any.
        overwrite: Whether any dataset may be replaced.

    Raises:
        DataError: The folder exists and isn't a dataset, or is one that may not be replaced.
        ConfigError: The folder can't be created.
    """
    free = is_free(folder)
    exists = is_dataset(folder)  # after it, since another process may just write one
    if not exists and not free:
        raise DataError(f"{folder} exists and isn't a dataset; name another folder, or remove it")
    if exists and origin is not None and not overwrite:
        with reading(folder, [ORIGIN]) as local:
            there = Origin.read(local)
        if there != origin:
            origin_text = "of an unknown origin" if there is None else str(there)
            raise DataError(
                f"{folder} is a dataset {origin_text}, which would be lost; name another folder, "
                "or pass --overwrite"
            )
    check_place(folder)


def is_dataset(folder: PathOrUrl | str) -> bool:
    """Whether a folder holds a dataset's two tables."""
    return len(find_files(folder, [QUERIES, OUTCOMES])) == 2


def _verify_folder(folder: Path) -> None:
    """Check a folder against its checksums; folders of other tools have none.

    Raises:
        CorruptError: A file isn't what was written.
    """
    if not (folder / files.CHECKSUMS).is_file():
        return
    files.verify_checksums(folder, [QUERIES, OUTCOMES])
    pool = POOL_FILES[0]
    if pool in files.read_checksums(folder):
        fix = f"copy the folder again or, if you changed {pool} yourself, remove its line from "
        files.verify_checksums(folder, [pool], fix=fix + files.CHECKSUMS)


def _no_dataset(path: Path) -> DataError:
    """The error where a dataset has no such file: another thing may have been named."""
    folder = path.parent
    if (folder / "router.json").is_file():
        return DataError(f"{folder} is a router; show it with: prefill-router show {folder}")
    if not folder.is_dir():
        what = "a file" if folder.is_file() else "no such folder"
        fix = "name a dataset's folder, or make one with: prefill-router import"
        return FormatError(f"{what}; {fix}", file=folder)
    return FormatError(
        f"no such file; a dataset is a folder with {QUERIES} and {OUTCOMES} (make one with: "
        "prefill-router import)",
        file=path,
    )


def _read_parquet(path: Path, *, needs: tuple[str, ...], rows: slice | None = None) -> pl.DataFrame:
    try:
        with path.open("rb") as file:
            if rows is None:
                frame = pl.read_parquet(file)  # Polars would read a path as a glob pattern
            else:
                whole = pl.scan_parquet(path, glob=False)
                frame = whole.slice(rows.start, rows.stop - rows.start).collect()
    except FileNotFoundError:
        raise _no_dataset(path) from None
    except (PolarsError, PanicException, OSError, ValueError) as error:
        raise FormatError(f"not a readable Parquet file: {error}", file=path) from None
    lacking = [column for column in needs if column not in frame.columns]
    if lacking:
        raise FormatError(f"lacks the columns {lacking}; it has {frame.columns}", file=path)
    return frame


def read_queries(path: Path, rows: slice | None = None) -> tuple[Query, ...]:
    """The queries of a Parquet file, or some of its rows.

    Raises:
        FormatError: The file is missing or malformed, has no such rows, or a row isn't a query.
    """
    frame = _read_parquet(path, needs=("query_id",), rows=rows)
    first = 0 if rows is None else rows.start
    if not {"prompt", "messages"} & set(frame.columns):
        raise FormatError(f"lacks a column prompt or messages; it has {frame.columns}", file=path)
    if frame.is_empty():
        raise FormatError("holds no queries; a dataset needs at least one", file=path)
    ids = _read_texts(frame, "query_id", path, first=first)
    prompts = _read_prompts(frame, path, first)
    benchmarks = _read_texts(frame, "benchmark", path, default="")
    domains = _read_texts(
        frame, "domain" if "domain" in frame.columns else "category", path, default=""
    )
    conversations = _read_texts(frame, "conversation", path, default="")
    try:
        return tuple(map(Query, ids, prompts, benchmarks, domains, conversations))
    except DataError as error:
        raise FormatError(str(error), file=path) from None


def count_queries(path: Path) -> int:
    """The number of queries in a Parquet file, which has at least one.

    Raises:
        FormatError: As `read_queries`, of the first row.
    """
    read_queries(path, slice(0, 1))
    try:
        return int(pl.scan_parquet(path, glob=False).select(pl.len()).collect().item())
    except PolarsError as error:
        raise FormatError(f"not a readable Parquet file: {error}", file=path) from None


def _read_texts(
    frame: pl.DataFrame, column: str, path: Path, *, default: str | None = None, first: int = 0
) -> list[str]:
    if column not in frame.columns and default is not None:
        return [default] * len(frame)
    if default is not None:
        same: dict[str, str] = {}  # few values, many rows: equal ones are one object
        values = _as_text(frame, column, path).fill_null(default).to_list()
        return [same.setdefault(value, value) for value in values]
    return _text_column(frame, column, path, first=first).to_list()


def _as_text(frame: pl.DataFrame, column: str, path: Path) -> pl.Series:
    try:
        return frame[column].cast(pl.String)
    except PolarsError:
        raise FormatError(
            f"{column} has the type {frame[column].dtype}; it needs text", file=path
        ) from None


def _text_column(frame: pl.DataFrame, column: str, path: Path, *, first: int = 0) -> pl.Series:
    values = _as_text(frame, column, path)
    if values.null_count():
        row = values.is_null().arg_max()
        line = None if row is None else first + row + 1
        raise FormatError(f"{column} is null", file=path, line=line)
    return values


def _read_prompts(frame: pl.DataFrame, path: Path, first: int) -> list[Prompt]:
    texts = frame["prompt"].to_list() if "prompt" in frame.columns else [None] * len(frame)
    chats = frame["messages"].to_list() if "messages" in frame.columns else [None] * len(frame)
    return [
        _read_prompt(text, chat, path, row)
        for row, (text, chat) in enumerate(zip(texts, chats, strict=True), first + 1)
    ]


def _read_prompt(text: object, chat: object, path: Path, row: int) -> Prompt:
    if isinstance(chat, list) and chat:
        try:
            turns = [(turn["role"], turn["content"]) for turn in chat]
        except (TypeError, KeyError):
            turns = [(None, None)]
        if all(isinstance(role, str) and isinstance(content, str) for role, content in turns):
            return tuple(Message(role, content) for role, content in turns)
        raise FormatError("messages must be a list of {role, content} texts", file=path, line=row)
    if isinstance(text, str):
        return text
    raise FormatError("has neither a prompt text nor messages", file=path, line=row)


def _read_pool_of(folder: Path, outcomes: pl.DataFrame) -> Pool:
    for name in POOL_FILES:
        if (folder / name).is_file():
            return read_pool(folder / name)
    names = outcomes["target"].drop_nulls().unique().sort().to_list()
    if not names:
        raise FormatError("names no target", file=folder / OUTCOMES)
    return Pool(tuple(Target(name=str(name)) for name in names))


def _read_tables(
    outcomes: pl.DataFrame, queries: tuple[Query, ...], pool: Pool, path: Path
) -> dict[str, Table]:
    shape = len(queries), len(pool)
    rows = _find_places(outcomes, "query_id", [query.id for query in queries], path)
    columns = _find_places(outcomes, "target", pool.names, path)
    cells = rows * len(pool) + columns
    _refuse_repeats(cells, outcomes, shape, path)
    del rows, columns
    tables = {}
    for column, name in _COLUMNS.items():
        if column in outcomes.columns:
            tables[name] = np.full(shape, np.nan)
            tables[name].reshape(-1)[cells] = _read_numbers(outcomes, column, path)
        elif column in _NUMBERS:
            tables[name] = missing_table(shape)
    return tables


def _find_places(
    outcomes: pl.DataFrame, column: str, names: Sequence[str], path: Path
) -> NDArray[np.int64]:
    """The position of each value among the names, by a join: no value becomes an object."""
    frame = pl.DataFrame({column: names}, schema={column: pl.String}).with_row_index("place")
    frame = frame.unique(column, keep="last")  # repeated ids are refused later
    values = _text_column(outcomes, column, path)
    places = values.to_frame().join(frame, on=column, how="left", maintain_order="left")["place"]
    if places.null_count():
        unknown = values.filter(places.is_null()).unique().sort()
        line = (values == unknown[0]).arg_max()
        raise FormatError(
            f"unknown values in {column}: {len(unknown)}, the first is {unknown[0]!r}; "
            f"they must be in {QUERIES if column == 'query_id' else 'the pool file'}",
            file=path,
            line=None if line is None else line + 1,
        )
    return places.cast(pl.Int64).to_numpy()


def _refuse_repeats(
    cells: NDArray[np.int64], outcomes: pl.DataFrame, shape: tuple[int, int], path: Path
) -> None:
    has_outcome = np.zeros(shape[0] * shape[1], dtype=np.bool_)
    has_outcome[cells] = True
    if np.count_nonzero(has_outcome) < len(cells):
        _, first = np.unique(cells, return_index=True)
        again = int(np.setdiff1d(np.arange(len(cells)), first)[0])
        query, target = (str(outcomes[name][again]) for name in ("query_id", "target"))
        raise FormatError(
            f"query {query!r} has more than one outcome for target {target!r}; keep one",
            file=path,
            line=again + 1,
        )


def _read_numbers(outcomes: pl.DataFrame, column: str, path: Path) -> np.ndarray:
    dtype = outcomes[column].dtype
    unfit = FormatError(f"{column} has the type {dtype}; it needs numbers", file=path)
    if dtype == pl.Boolean and column != "correct":
        raise unfit
    try:
        values = outcomes[column].cast(pl.Float64).fill_null(float("nan"))
    except PolarsError:
        raise unfit from None
    if values.dtype != pl.Float64:
        raise unfit
    return values.to_numpy()


def _refuse_unwritable(dataset: RoutingDataset) -> None:
    for query in dataset.queries:
        turns = () if isinstance(query.prompt, str) else query.prompt
        names = (query.id, query.benchmark, query.domain, query.conversation)
        texts = (*names, prompt_text(query.prompt))
        try:
            "".join([*texts, *(turn.role for turn in turns)]).encode()
        except UnicodeEncodeError:
            raise PromptError(
                "holds a lone surrogate, which can't be encoded; replace it", query_id=query.id
            ) from None


def _write_parquet(frame: pl.DataFrame, path: Path) -> None:
    content = io.BytesIO()
    frame.write_parquet(content)
    path.write_bytes(content.getbuffer())  # written by Python, so that a full disk is an OSError


def _queries_frame(dataset: RoutingDataset) -> pl.DataFrame:
    texts = [q.prompt if isinstance(q.prompt, str) else None for q in dataset.queries]
    chats = [
        None
        if isinstance(q.prompt, str)
        else [{"role": m.role, "content": m.content} for m in q.prompt]
        for q in dataset.queries
    ]
    turn = pl.Struct({"role": pl.String, "content": pl.String})
    conversations = [q.conversation for q in dataset.queries]
    return pl.DataFrame(
        {
            "query_id": dataset.query_ids,
            "prompt": texts,
            "messages": chats,
            "benchmark": [q.benchmark for q in dataset.queries],
            "domain": [q.domain for q in dataset.queries],
            **({"conversation": conversations} if any(conversations) else {}),
        },
        schema_overrides={"prompt": pl.String, "messages": pl.List(turn)},
    )


def _outcomes_frame(dataset: RoutingDataset) -> pl.DataFrame:
    tables_by_column = {column: getattr(dataset, name) for column, name in _COLUMNS.items()}
    tables = {column: table for column, table in tables_by_column.items() if table is not None}
    has_value = ~np.all([np.isnan(table) for table in tables.values()], axis=0)
    rows, columns = np.nonzero(has_value)
    return pl.DataFrame(
        {
            "query_id": np.array(dataset.query_ids, dtype=object)[rows].tolist(),
            "target": np.array(dataset.pool.names, dtype=object)[columns].tolist(),
            **{column: table[rows, columns] for column, table in tables.items()},
        }
    ).with_columns(pl.col(list(tables)).fill_nan(None))
