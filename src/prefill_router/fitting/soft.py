"""A judge's soft labels, mixed into the training labels (section 3.2 of the paper)."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Float64
from numpy.typing import NDArray
from polars.exceptions import PolarsError

from prefill_router.data import RoutingDataset
from prefill_router.errors import FormatError
from prefill_router.fitting.recipe import SoftLabels

_COLUMNS = ("query_id", "target", "score")
_READERS: Mapping[str, Callable[[Path], pl.DataFrame]] = {
    ".csv": partial(pl.read_csv, infer_schema=False),  # an id such as 007 is no number
    ".jsonl": pl.read_ndjson,
    ".parquet": pl.read_parquet,
}


def mixed(train: RoutingDataset, soft: SoftLabels) -> Float64[NDArray[np.float64], "query target"]:
    """The labels of the train part, `(1 - weight) * label + weight * score` where both are there.

    Rows are joined by id; scores of other queries or targets are ignored, so none of the test part
    has any effect.

    Raises:
        FormatError: The file is missing or malformed, repeats a pair, scores none of these
            queries, or a score is outside [0, 1].
    """
    scores = _scores(train, soft)
    both = ~np.isnan(scores) & ~np.isnan(train.correct)
    if not both.any():
        raise FormatError(
            "it scores no answer of the train part; are its ids and targets those of the dataset?",
            file=soft.file,
        )
    return np.where(both, (1 - soft.weight) * train.correct + soft.weight * scores, train.correct)


def _scores(
    train: RoutingDataset, soft: SoftLabels
) -> Float64[NDArray[np.float64], "query target"]:
    frame = _read(soft)
    row = {query_id: i for i, query_id in enumerate(train.query_ids)}
    column = {name: k for k, name in enumerate(train.pool.names)}
    table = np.full(train.correct.shape, np.nan)
    for query_id, target, score in frame.iter_rows():
        if query_id in row and target in column:
            cell = row[query_id], column[target]
            if not np.isnan(table[cell]):
                raise FormatError(f"scores {target!r} on {query_id!r} twice", file=soft.file)
            table[cell] = score
    return table


def _read(soft: SoftLabels) -> pl.DataFrame:
    reader = _READERS.get(soft.file.suffix)
    if reader is None:
        raise FormatError(f"must end in one of {sorted(_READERS)}", file=soft.file)
    try:
        frame = reader(soft.file)
        lacking = [name for name in _COLUMNS if name not in frame.columns]
        if lacking:
            raise FormatError(f"lacks the columns {lacking}", file=soft.file)
        frame = frame.select(
            pl.col("query_id").cast(pl.String),
            pl.col("target").cast(pl.String),
            pl.col("score").cast(pl.Float64),
        ).drop_nulls()
    except (OSError, PolarsError) as error:
        raise FormatError(" ".join(str(error).split()), file=soft.file) from None
    outside = frame.filter(~pl.col("score").is_between(0, 1))
    if len(outside):
        raise FormatError(f"a score is {outside['score'][0]}; give 0 to 1", file=soft.file)
    return frame
