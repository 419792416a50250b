"""The whole job, done once from the command line with a tiny encoder."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from packages.router.tests.coarse_figures import coarse_figures
from packages.router.tests.commands import FIT, Job, run, run_ok
from packages.router.tests.fakes.tiny_encoder import save_tiny_encoder
from packages.router.tests.short_training import short_training
from prefill_router.data import write_dataset
from prefill_router.testing import make_routing_dataset


@pytest.fixture(scope="module", autouse=True)
def short() -> Iterator[None]:
    """Short training and coarse figures: commands don't depend on either."""
    with short_training(), coarse_figures():
        yield


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("job")
    job = Job(
        *(folder / n for n in ("answers", "tiny", "states", "split.json", "router", "report"))
    )
    write_dataset(make_routing_dataset(queries=80, missing=0.05), job.answers)
    save_tiny_encoder(job.tiny)
    run_ok("encode", job.answers, "--encoder", job.tiny, "--out", job.states)
    run_ok("split", job.answers, "--out", job.split)
    fit = (*FIT, job.answers, "--store", job.states, "--split", job.split, "--dim", 8)
    evaluate = ("evaluate", job.router, "--data", job.answers, "--store", job.states)
    with short_training(), coarse_figures():
        run_ok(*fit, "--out", job.router)
        run_ok(*evaluate, "--resamples", 20, "--out", job.report)
    return job


@pytest.fixture
def copy(job: Job, tmp_path: Path) -> Job:
    """A copy that may be broken."""
    shutil.copytree(job.answers.parent, tmp_path / "copy")
    return Job(*(tmp_path / "copy" / path.name for path in vars(job).values()))


@pytest.fixture(scope="session")
def route(job: Job):  # noqa: ANN201
    """Runs `route` with the tiny encoder."""

    def run_route(*arguments: object, **options: bytes):  # noqa: ANN202
        return run("route", job.router, *arguments, "--encoder-folder", job.tiny, **options)

    return run_route
