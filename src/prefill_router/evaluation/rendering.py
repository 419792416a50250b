"""Figures as bytes and text: bitmap, SVG with real text, and an element of a page."""

import io

import matplotlib as mpl
from matplotlib.figure import Figure

from prefill_router.evaluation.labels import any_script

INK = "#010203"
"""Black for the eye; `inline_svg` makes it the page's text colour."""


def png(figure: Figure) -> bytes:
    """The figure as a bitmap on white."""
    buffer = io.BytesIO()
    with any_script():
        figure.savefig(buffer, format="png", dpi=160, facecolor="white")
    return buffer.getvalue()


def svg(figure: Figure, *, background: str = "white") -> str:
    """The figure as SVG with real text; the same figure gives the same bytes."""
    buffer = io.StringIO()
    with (
        mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "prefill-router"}),
        any_script(),
    ):
        figure.savefig(buffer, format="svg", facecolor=background, metadata={"Date": None})
    return buffer.getvalue()


def inline_svg(figure: Figure, *, label: str) -> str:
    """The figure as an element of a page, in the page's text colour, on its background."""
    text = svg(figure, background="none")
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
