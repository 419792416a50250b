"""Fixtures shared by the tests."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from packages.router.tests import typechecks

SHARED = Path(__file__).parents[1] / "shared" / "data" / "mmlu_pro"
TABLES = Path(__file__).parents[1] / "shared" / "samples" / "tables"
_SLOW_FILE = "\npytestmark = pytest.mark.slow"

typechecks.install()
gc.disable()  # until what is imported and collected is there, which stays: see below
os.environ.setdefault("HF_HUB_OFFLINE", "1")
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it would be ignored
os.fsync = lambda _: None  # processes are killed here, but no machine loses its power
settings.register_profile("untimed", deadline=None)  # a busy machine is no defect
settings.load_profile("untimed")


@pytest.fixture(scope="module", name="short_training")
def networks_that_stop_soon() -> Iterator[None]:
    """For modules of tests that aren't about what a router has learned."""
    from packages.router.tests.short_training import short_training  # once imports are checked

    with short_training():
        yield


@pytest.fixture(scope="session")
def mmlu_pro() -> Path:
    """The folder of real scored answers; tests that need it skip where it is absent."""
    if not (SHARED / "queries.parquet").is_file():
        pytest.skip(f"the MMLU-Pro answers are not at {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def table_samples() -> Path:
    """The folder of tables of other tools; tests that need it skip where it is absent."""
    if not TABLES.is_dir():
        pytest.skip(f"the samples of tables are not at {TABLES}")
    return TABLES


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of slow tests where these aren't wanted: to import them takes long."""
    is_left_out = config.option.markexpr == "not slow" and collection_path.suffix == ".py"
    return True if is_left_out and _SLOW_FILE in collection_path.read_text() else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files, so that no process is left with one of them at the end.

    Those are the files of slow tests alone, and of these the ones that are about the whole package.
    """
    quick = {item.path for item in items if not item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path in quick, len(item.path.parts)))


def pytest_runtest_setup() -> None:
    """Check the types of each function's first calls in each test."""
    typechecks.begin_test()


def pytest_collection_finish() -> None:
    """Leave all that is there by now out of the collector's rounds, some millions of objects."""
    gc.freeze()
    gc.enable()
