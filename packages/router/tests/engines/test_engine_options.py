"""The options of engines, without an engine."""

import json
import sys

import pytest

from prefill_router.cli.application import print_json
from prefill_router.cli.options import with_engine
from prefill_router.engines import RayEngine


@with_engine
def job(engine: "RayEngine | None" = None) -> None:
    sys.stdout.write("(raylet) a worker died\n")
    print_json({"engine": type(engine).__name__})


def test_what_an_engine_prints_is_apart_from_results(capsys: pytest.CaptureFixture[str]) -> None:
    job(engine="ray", address=None, workers=None, worker_cpus=None)  # type: ignore[arg-type, call-arg]
    output = capsys.readouterr()
    assert json.loads(output.out) == {"engine": "RayEngine"}
    assert "a worker died" in output.err
    print_json(1)  # the output is restored
    assert capsys.readouterr().out == "1\n"
