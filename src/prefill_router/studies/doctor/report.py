"""A check-up on disk.

    doctor.json    the verdict and every check, for programs
    index.html     the same on one page, with its figures; opens without a network
    figures/       plane, shuffled, lift and, where it was measured, confidence: .png, .svg, .csv

The folder is written whole or not at all. Costs in files are US dollars per query.
"""

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files as resources
from pathlib import Path
from string import Template

import polars as pl

from prefill_router import files
from prefill_router.errors import DataError
from prefill_router.studies.doctor.checkup import FORMAT, SIGNS, Checkup

NUMBERS = "doctor.json"
_CAPTIONS = {
    "plane": "The curve is the router at every lam; the diamond is the lam that was examined. The "
    "dashed line is what drawing targets by lot can reach, the cross what the router's own choices "
    "reach when they are dealt out at random.",
    "shuffled": "Each bar counts shuffles. The further right the line, the more the router's "
    "choices have to do with the queries.",
    "lift": "Green is surely better and orange surely worse: where the router is nowhere better or "
    "worse, in at most 5 of 100 samples any part of the queries has a colour, and as seldom all of "
    "them. Grey may be chance. Each line is the 95 % interval of its row alone, so some of many "
    "leave 0 out by chance.",
    "confidence": "Where the square lies below the dot the router promises more than it holds. The "
    "bar is where the truth may lie.",
}


def write_checkup(
    checkup: Checkup,
    folder: Path | str,
    *,
    title: str = "Check-up",
    facts: Mapping[str, str] | None = None,
) -> None:
    """Write a check-up, whole or not at all; an earlier one in the folder is replaced.

    Args:
        checkup: What is reported.
        folder: Where to; empty, not there yet, or an earlier check-up.
        title: Heads the page.
        facts: What the reader must know of it, such as the router, the data, the date.

    Raises:
        DataError: The folder holds something else than a check-up.
    """
    # Here and not above: matplotlib takes longer to import than most commands to run.
    from prefill_router.reporting.figures import inline_svg, png, svg
    from prefill_router.studies.doctor.figures import figures

    folder, facts = Path(folder), dict(facts or {})
    check_replaceable(folder)
    with files.replacing_folder(folder) as temporary:
        (temporary / "figures").mkdir()
        head = {"title": title, "facts": facts}
        files.write_json(temporary / NUMBERS, head | checkup.to_dict())
        inline = {}
        for name, (figure, rows) in figures(checkup).items():
            path = temporary / "figures" / name
            path.with_suffix(".png").write_bytes(png(figure))
            path.with_suffix(".svg").write_text(svg(figure), encoding="utf-8")
            frame = pl.DataFrame(rows, infer_schema_length=None).fill_nan(None)
            path.with_suffix(".csv").write_text(frame.write_csv(), encoding="utf-8")
            inline[name] = inline_svg(figure, label=name)
        page = render(checkup, title=title, facts=facts, figures=inline)
        (temporary / "index.html").write_text(page, encoding="utf-8")


def check_replaceable(folder: Path) -> None:
    """Check that a check-up may be written here; worth doing before long work.

    Raises:
        DataError: The folder holds something else than a check-up.
        ConfigError: It can't be made.
    """
    if (
        folder.exists()
        and not _is_checkup(folder)
        and (not folder.is_dir() or any(folder.iterdir()))
    ):
        raise DataError(
            f"{folder} exists and isn't a check-up; name another folder, or remove this one"
        )
    files.check_place(folder)


def render(
    checkup: Checkup, *, title: str, facts: Mapping[str, str], figures: Mapping[str, str]
) -> str:
    """The page's HTML.

    Args:
        checkup: What is reported.
        title: Heads the page.
        facts: What the reader must know of it.
        figures: SVG elements by name.
    """
    page = resources("prefill_router.studies.doctor") / "page.html"
    drawn = "".join(
        f"<figure>{svg}<figcaption>{escape(_CAPTIONS[name])}</figcaption></figure>"
        for name, svg in figures.items()
    )
    return Template(page.read_text(encoding="utf-8")).substitute(
        title=escape(title),
        verdict=escape(checkup.verdict.capitalize()),
        because=escape(checkup.because),
        facts="".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items()),
        checks="".join(_row(*row) for row in _checks(checkup)),
        notes="".join(f"<li>{escape(note)}</li>" for note in checkup.notes),
        figures=drawn,
    )


def _checks(checkup: Checkup) -> list[tuple[str, str, str]]:
    return [(found.sign, found.title, found.said) for found in checkup.findings]


def _row(sign: str, title: str, said: str) -> str:
    return (
        f'<tr class="{sign}"><td>{SIGNS[sign]}</td><th scope="row">{escape(title)}</th>'
        f"<td>{escape(said)}</td></tr>"
    )


def _is_checkup(folder: Path) -> bool:
    try:
        value = json.loads((folder / NUMBERS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and str(value.get("format", "")).startswith(FORMAT[:-1])
