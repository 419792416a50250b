"""From a table of scored answers to a router and its verdict, in one call."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

import polars as pl

from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError, PrefillRouterError, addressing_python, nearest
from prefill_router.evaluation import Curve, Evaluation, Verdict, WinVerdict
from prefill_router.features import Need
from prefill_router.files import default_cache
from prefill_router.fitting import Effort, FitConfig, fit_chosen, gather
from prefill_router.importers import (
    Columns,
    SourceDoubt,
    check_choice,
    guess_source,
    import_dataset,
)
from prefill_router.progress import Progress, default_progress
from prefill_router.reporting import Plot, plot
from prefill_router.router import Router
from prefill_router.short_repr import short_repr


def fit(
    table: object,
    *,
    columns: Columns | Mapping[str, Any] | None = None,
    prices: Path | str | None = None,
    encoder: str = "minilm",
    effort: Effort = "normal",
    seed: int = 0,
    verdict: bool = True,
    progress: Progress | None = None,
) -> "FitResult":
    """Fit a router on a table of scored answers or votes, and judge it.

    What the columns and the scores mean is guessed from their names and values, unless it is given.
    Every question is judged by a router that was fitted without it. Where a person watches, a bar
    shows the progress.

    Args:
        table: A data frame of polars or pandas, rows as a list of dicts, columns as a dict of
            lists, the path of a table, a log or a folder, or a `RoutingDataset`.
        columns: What holds what, and the scale of the scores, as `Columns` or a dict of its
            arguments; guessed where not given.
        prices: A pool.yaml or a prices.csv, matched by the targets' names.
        encoder: The encoder, as for `load_encoder`; its states are kept in the user's cache.
        effort: How many recipes are tried, see `fitting.choose_recipe`.
        seed: The seed of the training.
        verdict: Whether the router is judged, which takes five more fits.
        progress: Shows the progress; a bar in a terminal or a notebook if not given.

    Raises:
        ConfigError: The table can't be understood; the message says what to give.
        FormatError: A source can't be read.
        FitError: There is nothing to learn from.
    """
    progress = progress or default_progress()
    dataset = read_table(table, columns=columns, prices=prices)
    with addressing_python():
        states = gather([Need(encoder)], dataset, (), progress=progress)
        fitted, _ = fit_chosen(
            *(dataset, states),
            effort=effort,
            config=FitConfig(seed=seed),
            cache=default_cache(),
            verdict=verdict,
            progress=progress,
        )
    return FitResult(fitted.router, fitted.evaluation, fitted.win_verdict)


@short_repr
@final
@dataclass(frozen=True)
class FitResult:
    """A fitted router and what it is worth.

    Attributes:
        router: The router.
        evaluation: Its evaluation by cross-fitting; None where it wasn't judged, or learned from
            votes.
        win_verdict: The verdict in win rate on a router that learned from votes.
    """

    router: Router
    evaluation: Evaluation | None
    win_verdict: WinVerdict | None = None

    @property
    def verdict(self) -> Verdict | WinVerdict | None:
        """Whether it is worth using; None where it wasn't judged."""
        return self.win_verdict if self.evaluation is None else self.evaluation.verdict

    @property
    def curve(self) -> Curve | None:
        """Accuracy and cost at every setting; None where there is no evaluation."""
        return None if self.evaluation is None else self.evaluation.curve

    def plot(self) -> Plot:
        """Draw the accuracy at each cost, or the targets alone where there is no evaluation."""
        return plot(self.router if self.evaluation is None else self.evaluation)

    def _repr_html_(self) -> str:
        return self.router._repr_html_()


def read_table(
    table: object,
    *,
    columns: Columns | Mapping[str, Any] | None = None,
    prices: Path | str | None = None,
) -> RoutingDataset:
    """The dataset of a table; the arguments are those of `fit`.

    Raises:
        ConfigError: The table can't be understood.
        FormatError: A source can't be read.
    """
    named = _read_columns(columns)
    if isinstance(table, RoutingDataset):
        return table
    if isinstance(table, str | Path):
        with addressing_python():
            return _import_files([Path(table)], named, prices)
    frame = _read_frame(table)
    with TemporaryDirectory(prefix="prefill-router-") as folder:
        place = Path(folder) / "table.parquet"
        frame.write_parquet(place)
        with addressing_python(), _naming_rows(place):
            return _import_files([place], named, prices)


def _read_columns(columns: Columns | Mapping[str, Any] | None) -> Columns | None:
    if columns is None or isinstance(columns, Columns):
        return columns
    names = [column.name for column in fields(Columns)]
    for name in columns:
        if name not in names:
            raise ConfigError(
                f"columns has no {name!r}{nearest(name, names)}; it takes {', '.join(names)}, each "
                "with the name of a column of the table"
            )
    targets = columns.get("targets", ())
    if isinstance(targets, str):
        raise ConfigError(f"the targets are {targets!r}; give a list of columns, two or more")
    return Columns(**{**columns, "targets": tuple(targets)})


@contextmanager
def _naming_rows(place: Path) -> Iterator[None]:
    """Name rows of the table instead of the temporary file where it lies for the moment."""
    try:
        yield
    except PrefillRouterError as error:
        error.reword(
            lambda message: re.sub(
                rf"{re.escape(str(place))}:(\d+)", r"row \1 of the table", message
            ).replace(str(place), "the table")
        )
        raise


def _read_frame(table: Any) -> pl.DataFrame:
    if isinstance(table, pl.DataFrame):
        return table
    if isinstance(table, Mapping):
        return _frame_of_columns(table)
    if hasattr(table, "to_dict"):  # a data frame of pandas
        table = table.to_dict("records")
    if isinstance(table, Sequence) and all(isinstance(row, Mapping) for row in table):
        return pl.DataFrame([dict(row) for row in table], infer_schema_length=None, strict=False)
    raise ConfigError(
        f"the table is a {type(table).__name__}; give a data frame, a list of dicts, a dict of "
        "lists, or a path"
    )


def _frame_of_columns(table: Mapping[Any, Any]) -> pl.DataFrame:
    columns = {str(name): list(cells) for name, cells in table.items() if _is_column(cells)}
    if len(columns) < len(table) or len(set(map(len, columns.values()))) > 1:
        raise ConfigError("the table is a dict; give lists of the same length, one a column")
    return pl.DataFrame(columns, strict=False)


def _is_column(cells: object) -> bool:
    return hasattr(cells, "__iter__") and not isinstance(cells, str | bytes | Mapping)


def _import_files(
    paths: Sequence[Path], columns: Columns | None, prices: Path | str | None
) -> RoutingDataset:
    guess = guess_source(paths, columns=columns)
    while guess.doubts:
        _refuse_doubts(guess.doubts)
        doubt = guess.doubts[0]
        columns = doubt.settle(columns or Columns(), doubt.choices[0])
        guess = guess_source(paths, columns=columns)
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
