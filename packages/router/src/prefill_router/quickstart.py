"""From a table of scored answers to a router, in one call."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError
from prefill_router.features import Need
from prefill_router.fitting import Effort, FitConfig, fit_chosen, gather
from prefill_router.importers import (
    Columns,
    SourceDoubt,
    check_choice,
    guess_source,
    import_dataset,
)
from prefill_router.progress import Progress, SilentProgress
from prefill_router.router import Router


def fit(
    table: object,
    *,
    columns: Columns | None = None,
    prices: Path | str | None = None,
    encoder: str = "minilm",
    effort: Effort = "normal",
    seed: int = 0,
    progress: Progress | None = None,
) -> Router:
    """Fit a router on a table of scored answers.

    What the columns and the scores mean is guessed from their names and values, unless it is given.
    The router's `record` has its verdict and its metrics on questions that it wasn't fitted on.

    Args:
        table: A data frame of polars or pandas, rows as a list of dicts, the path of a table, a log
            or a folder, or a `RoutingDataset`.
        columns: What holds what, and the scale of the scores; guessed where not given.
        prices: A pool.yaml or a prices.csv, matched by the targets' names.
        encoder: The encoder, as for `load_encoder`; its states are kept in the user's cache.
        effort: How many recipes are tried, see `studies.search.choose_recipe`.
        seed: The seed of the split and the training.
        progress: Shows the progress.

    Raises:
        ConfigError: The table can't be understood; the message says what to give.
        FormatError: A source can't be read.
        FitError: There is nothing to learn from, or only votes between two answers.
    """
    shown = progress or SilentProgress()
    dataset = read_table(table, columns=columns, prices=prices)
    dataset.meaning.refuse_votes()
    states = gather([Need(encoder)], dataset, (), progress=shown)
    fitted, _ = fit_chosen(
        dataset, states, effort=effort, config=FitConfig(seed=seed), progress=shown
    )
    return fitted.router


def read_table(
    table: object, *, columns: Columns | None = None, prices: Path | str | None = None
) -> RoutingDataset:
    """The dataset of a table; the arguments are those of `fit`.

    Raises:
        ConfigError: The table can't be understood.
        FormatError: A source can't be read.
    """
    if isinstance(table, RoutingDataset):
        return table
    if isinstance(table, str | Path):
        return _imported([Path(table)], columns, prices)
    with TemporaryDirectory(prefix="prefill-router-") as folder:
        place = Path(folder) / "table.parquet"
        _frame(table).write_parquet(place)
        return _imported([place], columns, prices)


def _frame(table: Any) -> pl.DataFrame:
    if isinstance(table, pl.DataFrame):
        return table
    if hasattr(table, "to_dict"):  # a data frame of pandas
        table = table.to_dict("records")
    if isinstance(table, Sequence) and all(isinstance(row, Mapping) for row in table):
        return pl.DataFrame([dict(row) for row in table], infer_schema_length=None, strict=False)
    raise ConfigError(
        f"the table is a {type(table).__name__}; give a data frame, a list of dicts, or a path"
    )


def _imported(
    paths: Sequence[Path], columns: Columns | None, prices: Path | str | None
) -> RoutingDataset:
    guess = guess_source(paths, given=columns)
    while guess.doubts:
        _refuse_doubts(guess.doubts)
        doubt = guess.doubts[0]
        columns = doubt.settle(columns or Columns(), doubt.choices[0])
        guess = guess_source(paths, given=columns)
    dataset = import_dataset(guess.format, paths, columns=guess.columns, prices=prices).dataset
    check_choice(dataset, guess.format)
    return dataset


def _refuse_doubts(doubts: Sequence[SourceDoubt]) -> None:
    """Say all that a table doesn't tell, and what to give.

    Raises:
        ConfigError: The likeliest answer to one of them may be wrong.
    """
    if not any(doubt.is_reckless for doubt in doubts):
        return
    questions = " ".join(doubt.question_with_choices() for doubt in doubts)
    options = ", ".join(doubt.python for doubt in doubts)
    raise ConfigError(f"the table doesn't tell: {questions} Give columns=Columns({options})")
