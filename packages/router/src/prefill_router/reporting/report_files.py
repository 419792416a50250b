"""A report on disk.

    NAME.json      every number
    *.csv          its tables
    figures/       .png, .svg, .csv
    index.html     one page with all of it: works offline, in light and dark mode, and in print

Each file is written whole or not at all. The folder of a study also holds:

    study.json     the study that the folder is for, and its options; written at the start
    routers/       the fitted routers, where there are any

A folder that holds something else is never overwritten.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, final

import polars as pl
from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from prefill_router import files
from prefill_router.data import Origin
from prefill_router.errors import ConfigError, DataError
from prefill_router.reporting.report import Part, Report, Rows, as_cell


def style() -> str:
    """The style sheet of all pages."""
    return _read_resource("style.css")


def render(report: Report, svg: Mapping[str, str]) -> str:
    """The page's HTML.

    Args:
        report: The report.
        svg: The figures as SVG elements (`figures.inline_svg`), by name.
    """
    facts = [report.facts] if report.facts else []
    return page(report.title, [*report.summary, *facts, *report.parts], svg)


def page(title: str, parts: Sequence[Part], svg: Mapping[str, str] | None = None) -> str:
    """An HTML page with a title and parts; all text is escaped."""
    elements = {name: Markup(element) for name, element in (svg or {}).items()}
    return _load_template().render(title=title, style=Markup(style()), parts=parts, svg=elements)


@cache
def _load_template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters["cell"] = as_cell
    return environment.from_string(_read_resource("page.html"))


def _read_resource(name: str) -> str:
    return (resources.files("prefill_router.reporting") / name).read_text(encoding="utf-8")


STUDY_FORMAT = "prefill-router study 1"
MARK = "study.json"
PAGE = "index.html"
ROUTERS = "routers"


@final
@dataclass(frozen=True)
class ReportKind:
    """A kind of report that is written as a whole folder, and replaced as one.

    Attributes:
        what: A noun for messages, for example `a report`.
        numbers: The name of the JSON file with its numbers.
        format: The format name in that file; other versions of it count as the same kind.
    """

    what: str
    numbers: str
    format: str

    def is_own(self, folder: Path) -> bool:
        """Whether this package wrote the folder."""
        format_ = str(_read_json(folder / self.numbers).get("format", ""))
        return format_.startswith(self.format[:-1])

    def check_replaceable(self, folder: Path) -> None:
        """Check that a report may be written to the folder, before any long computation.

        Raises:
            DataError: The folder holds something else.
            ConfigError: The folder can't be created.
        """
        empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
        if not empty and not self.is_own(folder):
            raise DataError(
                f"{folder} exists and isn't {self.what}; name another folder, or remove this one"
            )
        files.check_place(folder)

    def replace(
        self, report: Report, folder: Path, *, page: bool = True, origin: Origin | None = None
    ) -> None:
        """Write a report, the folder whole or not at all; an earlier one is replaced.

        Args:
            report: The report.
            folder: The folder to write.
            page: Whether figures and the page are written too.
            origin: The command that made it, to be recorded with it.

        Raises:
            DataError: The folder holds something else.
        """
        self.check_replaceable(folder)
        with files.replacing_folder(folder) as temporary:
            write_report_files(report, temporary, page=page)
            if origin is not None:
                origin.write(temporary)


def check_place(folder: Path, name: str) -> None:
    """Check that a study may be written to the folder, before any long computation.

    Raises:
        ConfigError: The folder holds something else.
    """
    if folder.exists() and not (folder.is_dir() and _is_own(folder, name)):
        raise ConfigError(
            f"{folder} exists and is no study {name!r}; name another folder, or remove it"
        )
    files.check_place(folder, replaced=False)


def mark(folder: Path, name: str, settings: Mapping[str, Any]) -> None:
    """Record the study that the folder is for, before the work begins."""
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(
        folder / MARK, {"format": STUDY_FORMAT, "study": name, "asked": dict(settings)}
    )


def write_report_files(report: Report, folder: Path, *, page: bool = True) -> None:
    """Write a report, each file whole or not at all.

    Args:
        report: The report.
        folder: The folder to write, already checked.
        page: Whether figures and the page are written too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in report.tables.items():
        write_csv(folder / f"{name}.csv", rows)
    head: Mapping[str, Any] = {"title": report.title, "known": dict(report.facts)}
    if report.head is not None:
        head = report.head
    files.write_json(folder / f"{report.name}.json", {**head, **report.numbers})
    if page:
        _write_page(report, folder)


def _write_page(report: Report, folder: Path) -> None:
    # Here and not above: matplotlib takes longer to import than most commands to run.
    from prefill_router.reporting.figures import inline_svg, write_figure

    svg = {}
    for name, figure in report.figures.items():
        _, svg_path, _ = write_figure(figure.figure, folder / "figures" / name, figure.rows)
        svg[name] = inline_svg(svg_path.read_text(encoding="utf-8"), label=figure.label or name)
    files.write_text(folder / PAGE, render(report, svg))


def write_csv(path: Path, rows: Rows) -> None:
    """Write rows, or columns, as CSV; empty where a number isn't defined."""
    frame = pl.DataFrame(rows, infer_schema_length=None)
    files.write_text(path, frame.fill_nan(None).write_csv())


def _is_own(folder: Path, name: str) -> bool:
    value = _read_json(folder / MARK)
    return not any(folder.iterdir()) or (
        value.get("format") == STUDY_FORMAT and value.get("study") == name
    )


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
