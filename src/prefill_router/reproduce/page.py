"""The page of a reproduction: the paper's tables and figures in its order, ours beside them."""

from collections.abc import Mapping, Sequence
from html import escape

from prefill_router.evaluation.formatting import NOTHING
from prefill_router.reporting.pages import (
    facts,
    figure,
    page,
    paragraph,
    plain_cell,
    section,
    table,
    wide,
)
from prefill_router.reproduce.cells import PaperTable, TableCell, shown, spread
from prefill_router.reproduce.claims import Claim
from prefill_router.reproduce.figures import PaperFigure

_AFTER: Mapping[int, int] = {1: 0, 2: 3, 3: 3, 4: 27, 5: 29, 6: 29, 7: 29, 8: 29}
"""After which table each figure stands in the paper."""


def render(
    tables: Sequence[PaperTable],
    pictures: Sequence[PaperFigure],
    claims: Sequence[Claim],
    *,
    title: str,
    said: Sequence[str],
    known: Mapping[str, str],
    svg: Mapping[str, str],
) -> str:
    """The page's HTML.

    Args:
        tables: In the paper's order.
        pictures: The figures.
        claims: What the paper claims, checked.
        title: Heads the page.
        said: The result in sentences.
        known: What the reader must know of the data, the encoder and the work.
        svg: The figures that are drawn, as SVG elements by name.
    """
    parts = [_of_figures(0, pictures, svg)]
    for one in tables:
        parts += [_table(one), _of_figures(one.number, pictures, svg)]
    return page(
        title,
        *(paragraph(text) for text in said),
        facts(known),
        section("What the paper claims, on these data", wide(_claims(claims))),
        section("How to read the tables", *(paragraph(text) for text in _READING)),
        *(part for part in parts if part),
    )


_READING = (
    "Tables and figures stand in the paper's order, under the paper's numbers. In every cell ours "
    "is on top with its 95 % interval below it, and the paper's number stands last, in italics, "
    "with the paper's own interval where it gives one. A dash means that we have none; the reason "
    "shows when the pointer rests on it, or above the table.",
    "The routers are the packaged ones with their defaults, fitted on the train part of one split "
    "and judged on its test part. They don't share the paper's encoder, its embeddings or its "
    "search over configurations, so what can be expected to agree is the order of the routers, "
    "and not the third digit.",
)


def _claims(claims: Sequence[Claim]) -> str:
    rows = [
        [
            escape(one.pool),
            f'<td class="text">{escape(one.text)}</td>',
            plain_cell(one.answer),
            f'<td class="text">{escape(one.because)}</td>',
        ]
        for one in claims
    ]
    return table(["Pool", "the paper says", "holds", "found"], rows)


def _table(one: PaperTable) -> str:
    parts = [paragraph(f"In the paper: {one.where}.", soft=True)]
    if one.missing:
        parts.append(paragraph(f"Not computed. {one.missing}"))
    parts += [paragraph(text, soft=True) for text in dict.fromkeys(one.said)]
    content = wide(html_of(one))
    if one.missing:
        content = f"<details><summary>The paper's numbers</summary>{content}</details>"
    return section(f"Table {one.number}. {one.title}", *parts, content)


def html_of(one: PaperTable) -> str:
    """A table as HTML: the keys of its rows, then a cell per number."""
    head = [escape(key) for key in one.keys] + [escape(column) for column in one.columns]
    rows = [
        [
            escape(row.names[0]),
            *(f"<td>{escape(name)}</td>" for name in row.names[1:]),
            *(_cell(cell) for cell in row.cells),
        ]
        for row in one.rows
    ]
    return table(head, rows)


def _cell(cell: TableCell) -> str:
    parts = []
    if cell.ours is not None:
        text = shown(cell.ours.value, cell.unit)
        if cell.sd is not None:
            text += f" ± {cell.sd:.4f}"
        parts.append(escape(text))
        parts.append(_small(spread(cell.ours.lower, cell.ours.upper, cell.unit)))
    elif cell.why or cell.paper is None:
        parts.append(NOTHING)
    if cell.paper is not None:
        text = shown(cell.paper.value, cell.unit)
        if cell.paper.sd is not None:
            text += f" ± {cell.paper.sd:.4f}"
        range_ = spread(cell.paper.lower, cell.paper.upper, cell.unit)
        parts.append(f"<small><i>{escape(text)}</i></small>")
        parts.append(f"<small><i>{escape(range_)}</i></small>" if range_ else "")
    hint = cell.why or ("" if cell.ours is None else cell.ours.reason)
    title = f' title="{escape(hint)}"' if hint else ""
    return f"<td{title}>{''.join(parts)}</td>"


def _small(text: str) -> str:
    return f"<small>{escape(text)}</small>" if text else ""


def _of_figures(after: int, pictures: Sequence[PaperFigure], svg: Mapping[str, str]) -> str:
    return "\n".join(_picture(one, svg) for one in pictures if _AFTER[one.number] == after)


def _picture(one: PaperFigure, svg: Mapping[str, str]) -> str:
    parts = [paragraph(f"In the paper: {one.where}.", soft=True)]
    if one.name in svg:
        parts.append(figure(svg[one.name], one.caption))
    else:
        parts.append(paragraph(one.missing))
    return section(f"Figure {one.number}. {one.title}", *parts)
