"""The map of the package names what there is."""

import re
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[1] / "ARCHITECTURE.md").read_text(encoding="utf-8")
PACKAGE = Path(__file__).parents[1] / "src" / "prefill_router"
CALLS = sorted(set(re.findall(r"`([a-z_.]+):([A-Za-z_.]+)`", TEXT)))
FILES = sorted(set(re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", TEXT)))


@pytest.mark.parametrize(("module", "name"), CALLS)
def test_the_walks_name_functions_that_there_are(module: str, name: str) -> None:
    found = import_module(f"prefill_router.{module}")
    assert callable(reduce(getattr, name.split("."), found))


@pytest.mark.parametrize("place", FILES)
def test_the_table_names_files_that_there_are(place: str) -> None:
    assert (PACKAGE / place).exists() or (PACKAGE.parents[1] / place).exists()


def test_every_package_has_its_line() -> None:
    assert len(CALLS) > 20
    rows = TEXT.split("## The packages")[1].split("## A row")[0]
    packages = {p.parent.name for p in PACKAGE.glob("*/__init__.py")}
    assert {name for name in packages if f"`{name}`" not in rows} == set()
