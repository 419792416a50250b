"""A study on disk.

    study.json     which study the folder is for, and what it was asked; there from the start
    NAME.json      every number
    *.csv          its tables
    figures/       .png, .svg, .csv
    index.html     one page with all of it; opens without a network
    routers/       what was fitted on the way, where routers are

Each file is written whole or not at all, and a folder that isn't the study's own is left alone.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import polars as pl

from prefill_router import files
from prefill_router.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FORMAT = "prefill-router study 1"
MARK = "study.json"
PAGE = "index.html"
ROUTERS = "routers"
Rows = Sequence[Mapping[str, Any]]


@final
@dataclass(frozen=True, eq=False)
class StudyFigure:
    """A figure of a study.

    Attributes:
        figure: It.
        rows: The data that it is drawn from.
        caption: What to see in it, plain text.
    """

    figure: "Figure"
    rows: Rows
    caption: str


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class StudyReport:
    """Everything that a study says.

    Attributes:
        name: The study's, such as `seeds`.
        title: Heads the page.
        said: The result in sentences, plain text.
        known: What the reader must know: the data, the split, the seed.
        sections: Headed parts of the page, HTML (`reporting.pages`), after the figures.
        numbers: Plain values for JSON, without NaN.
        tables: Rows by the name of their CSV file, without the suffix.
        figures: By name.
    """

    name: str
    title: str
    said: Sequence[str]
    known: Mapping[str, str]
    sections: Sequence[tuple[str, Sequence[str]]]
    numbers: Mapping[str, Any]
    tables: Mapping[str, Rows] = field(default_factory=dict)
    figures: Mapping[str, StudyFigure] = field(default_factory=dict)


def check_place(folder: Path, name: str) -> None:
    """Check that a study may be written here; worth doing before long work.

    Raises:
        ConfigError: The folder holds something else.
    """
    if folder.exists() and not (folder.is_dir() and _is_own(folder, name)):
        raise ConfigError(
            f"{folder} exists and is no study {name!r}; name another folder, or remove it"
        )
    files.check_place(folder, replaced=False)


def mark(folder: Path, name: str, asked: Mapping[str, Any]) -> None:
    """Say what the folder is for, before the work begins."""
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / MARK, {"format": FORMAT, "study": name, "asked": dict(asked)})


def write(sheet: StudyReport, folder: Path) -> None:
    """Write a study, each file whole or not at all.

    Args:
        sheet: What it says.
        folder: Where to, checked and marked before.
    """
    # Here and not above: matplotlib takes longer to import than most commands to run.
    from prefill_router.reporting.figures import inline_svg, write_figure

    folder.mkdir(parents=True, exist_ok=True)
    if sheet.figures:
        (folder / "figures").mkdir(exist_ok=True)
    inline = {}
    for name, drawn in sheet.figures.items():
        write_figure(drawn.figure, folder / "figures" / name, drawn.rows)
        inline[name] = inline_svg(drawn.figure, label=name)
    for name, rows in sheet.tables.items():
        frame = pl.DataFrame([dict(row) for row in rows], infer_schema_length=None)
        files.write_text(folder / f"{name}.csv", frame.fill_nan(None).write_csv())
    head = {"format": FORMAT, "title": sheet.title, "known": dict(sheet.known)}
    files.write_json(folder / f"{sheet.name}.json", {**head, **sheet.numbers})
    files.write_text(folder / PAGE, render(sheet, inline))


def render(sheet: StudyReport, svg: Mapping[str, str]) -> str:
    """The page's HTML.

    Args:
        sheet: What it says.
        svg: The figures as SVG elements, by name.
    """
    from prefill_router.reporting.pages import facts, figure, page, paragraph, section

    return page(
        sheet.title,
        *(paragraph(text) for text in sheet.said),
        facts(sheet.known),
        *(figure(svg[name], drawn.caption) for name, drawn in sheet.figures.items()),
        *(section(title, *parts) for title, parts in sheet.sections),
    )


def _is_own(folder: Path, name: str) -> bool:
    if not any(folder.iterdir()):
        return True
    try:
        value = json.loads((folder / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    known = isinstance(value, dict) and value.get("format") == FORMAT
    return bool(known and value.get("study") == name)
