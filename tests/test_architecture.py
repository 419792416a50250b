"""The map of the package names what there is."""

import csv
import re
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

from prefill_router.data import write_dataset
from prefill_router.encoders import load_encoder
from prefill_router.encoders.run import encode_dataset
from prefill_router.fitting import fit_router
from prefill_router.importers import Columns, import_dataset
from prefill_router.reporting import write_report
from prefill_router.testing import make_routing_dataset
from tests.architecture import TEXT, walk
from tests.call_trace import traced
from tests.fakes.tiny_encoder import save_tiny_encoder
from tests.router.fixtures import SMALL

pytestmark = pytest.mark.slow

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


def write_answers(path: Path) -> Path:
    """A long table of scored answers."""
    data = make_routing_dataset(queries=80)
    columns = ("query_id", "prompt", "target", "correct", "input_tokens", "output_tokens", "cost")
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(columns)
        for row, query in enumerate(data.queries):
            for column, name in enumerate(data.pool.names):
                known = (data.correct, data.input_tokens, data.output_tokens)
                cells = [values[row, column] for values in known]
                table.writerow([query.id, query.prompt, name, *cells, 0.001 * (column + 1)])
    return path


def test_a_row_goes_the_way_that_the_walk_tells(tmp_path: Path) -> None:
    answers = write_answers(tmp_path / "answers.csv")
    tiny = save_tiny_encoder(tmp_path / "tiny")
    with traced() as calls:
        data = import_dataset("long", [answers], columns=Columns(target="target")).dataset
        write_dataset(data, tmp_path / "data")
        encoder = load_encoder(str(tiny))
        store = encode_dataset(data, encoder, tmp_path / "store", sites=encoder.sites)
        fit = fit_router(data, [store], config=SMALL)
        fit.router.save(tmp_path / "router")
        write_report(fit.evaluation, tmp_path / "report")
    steps = walk("A row, from import to metric")
    assert len(steps) > 20
    assert calls.in_order(steps) == steps
