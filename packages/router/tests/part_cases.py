"""Every kind of part has a case in the suite of its kind, and a place in the guide of its kind."""

from collections.abc import Collection
from pathlib import Path

GUIDES = Path(__file__).parents[3] / "docs" / "guides"


def check_cases(
    kinds: Collection[str],
    cases: Collection[str],
    *,
    add: str = "a case",
    to: str,
    guide: str | None = None,
) -> None:
    """Check that every kind has a case, and every case is of a kind.

    Args:
        kinds: The kinds of a registry.
        cases: The kinds that have a case.
        add: What to add for a kind without one.
        to: Where to add it.
        guide: The page of `docs/guides` that names every kind.
    """
    page = "" if guide is None else f" and a row to docs/guides/{guide}"
    missing = [kind for kind in kinds if kind not in cases]
    assert not missing, f"add {add} for {', '.join(map(repr, missing))} to {to}{page}"
    surplus = [kind for kind in cases if kind not in kinds]
    assert not surplus, f"there is no kind {', '.join(map(repr, surplus))}; remove it from {to}"
    if guide is not None:
        check_guide(kinds, guide)


def check_guide(kinds: Collection[str], guide: str) -> None:
    """Check that a page of `docs/guides` names every kind."""
    text = (GUIDES / guide).read_text(encoding="utf-8")
    missing = [kind for kind in kinds if f"`{kind}`" not in text]
    assert not missing, f"add a row for {', '.join(map(repr, missing))} to docs/guides/{guide}"
