"""HTML pages: one file that works offline, in light and dark mode, and in print."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from prefill_router.reporting.report import Part, Report, as_cell


def style() -> str:
    """The style sheet of all pages."""
    return _resource("style.css")


def render(report: Report, svg: Mapping[str, str]) -> str:
    """The page's HTML.

    Args:
        report: The report.
        svg: The figures as SVG elements (`figures.inline_svg`), by name.
    """
    known = [report.known] if report.known else []
    return page(report.title, [*report.summary, *known, *report.parts], svg)


def page(title: str, parts: Sequence[Part], svg: Mapping[str, str] | None = None) -> str:
    """An HTML page with a title and parts; all text is escaped."""
    drawn = {name: Markup(element) for name, element in (svg or {}).items()}
    return _template().render(title=title, style=Markup(style()), parts=parts, svg=drawn)


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters["cell"] = as_cell
    return environment.from_string(_resource("page.html"))


def _resource(name: str) -> str:
    return (files("prefill_router.reporting") / name).read_text(encoding="utf-8")
