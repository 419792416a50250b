"""Pages for people: one HTML file that opens without a network, light and dark, and prints."""

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Literal

from prefill_router.evaluation.bootstrap import Estimate
from prefill_router.evaluation.formatting import Better, Unit, interval, worded

Sure = Literal["", "better", "worse"]
BOLD = (
    "Bold: surely better than what it is held against, on the same queries (the interval of the "
    "difference excludes 0); in brackets: surely worse."
)
"""What bold and brackets mean in every table of every page."""
UNDERLINED = "Underlined: the best of its row, surely or by chance."
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def style() -> str:
    """The style sheet of all pages."""
    sheet = files("prefill_router.reporting") / "page.css"
    return sheet.read_text(encoding="utf-8")


def page(title: str, *parts: str) -> str:
    """A whole page.

    Args:
        title: Heads it; plain text.
        parts: What follows, HTML.
    """
    return _PAGE.format(title=escape(title), style=style(), body="\n".join(parts))


def section(title: str, *parts: str) -> str:
    """A headed part of a page."""
    return "\n".join([f"<h2>{escape(title)}</h2>", *parts])


def paragraph(text: str, *, soft: bool = False) -> str:
    """A paragraph of plain text."""
    kind = ' class="soft"' if soft else ""
    return f"<p{kind}>{escape(text)}</p>"


def pairs(values: Mapping[str, str]) -> str:
    """Names and what they are, for a list of facts."""
    return "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in values.items()
    )


def facts(values: Mapping[str, str]) -> str:
    """A list of facts."""
    return f'<dl class="facts">{pairs(values)}</dl>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are HTML already; the first of each row heads it."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join(f'<tr><th scope="row">{row[0]}</th>{"".join(row[1:])}</tr>' for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def wide(content: str) -> str:
    """Content that scrolls sideways where it is wider than the page, and shades its hidden side."""
    return f'<div class="wide" tabindex="0">{content}</div>'


def sure(difference: Estimate, better: Better) -> Sure:
    """What a difference says of the first of two: nothing where its interval holds 0."""
    if better == "neither" or not (difference.lower > 0 or difference.upper < 0):
        return ""
    return "better" if (difference.lower > 0) == (better == "higher") else "worse"


def plain_cell(text: str, *, note: str = "", best: bool = False) -> str:
    """A cell of text, with a smaller note under it; underlined if it is the best of its row."""
    small = f"<small>{escape(note)}</small>" if note else ""
    shown = f"<u>{escape(text)}</u>" if best else escape(text)
    return f"<td>{shown}{small}</td>"


def estimate_cell(estimate: Estimate, unit: Unit, *, signed: bool = False, held: Sure = "") -> str:
    """A cell with a number, its interval under it, and why it isn't defined as a hint.

    Args:
        estimate: The number.
        unit: Of it.
        signed: Whether a plus is shown.
        held: How it does against what it is held against, see `BOLD`.
    """
    spread = interval(estimate, unit)
    small = f"<small>{escape(spread)}</small>" if spread else ""
    hint = f' title="{escape(estimate.reason)}"' if estimate.reason else ""
    text = escape(worded(estimate.value, unit, signed=signed))
    shown = {"better": f"<b>{text}</b>", "worse": f"[{text}]", "": text}[held]
    return f"<td{hint}>{shown}{small}</td>"


def figure(svg: str, caption: str) -> str:
    """A figure, an SVG element (`figures.inline_svg`), with plain text under it."""
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"
