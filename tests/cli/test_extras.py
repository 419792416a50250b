"""What works without the extras, and what is told where one is missing."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from packages.router.tests.commands import Job
from prefill_router.lazy_imports import EXTRAS

pytestmark = pytest.mark.slow

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
LEFT_OUT = ("gateway", "reports")
BLOCKED = (*sorted(m for m, (_, extra) in EXTRAS.items() if extra in LEFT_OUT), "uvloop")
CORE = ("cli.application", "fitting", "router", "evaluation", "importers", "reporting")
PROGRAM = """
import contextlib, io, json, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
import prefill_router
{body}
print(json.dumps(done))
"""
RUN = """
from prefill_router.cli import main

done = []
for words in {commands!r}:
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["prefill-router", *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    done.append([code, out.getvalue(), err.getvalue()])
"""
IMPORT = """
import importlib, pkgutil
from prefill_router.errors import MissingExtraError

for module in {core!r}:
    importlib.import_module(f"prefill_router.{{module}}")
loaded = sorted({extras!r} & set(sys.modules))
lacking = {{}}
for found in pkgutil.walk_packages(prefill_router.__path__, "prefill_router.", lambda name: None):
    if not found.ispkg and found.name.count(".") > 1:
        continue
    try:
        module = importlib.import_module(found.name)
        for name in getattr(module, "__all__", ()):
            getattr(module, name)
    except MissingExtraError as error:
        lacking[found.name] = error.extra
done = [loaded, lacking]
"""


def without_extras(body: str) -> Any:
    program = PROGRAM.format(blocked=set(BLOCKED), body=body)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def run_without_extras(*commands: tuple[object, ...]) -> list[list[Any]]:
    words = [tuple(map(str, command)) for command in commands]
    done = without_extras(RUN.format(commands=words))
    assert isinstance(done, list)
    return done


def packages(extra: str) -> set[str]:
    return {re.split(r"[\[><=;]", line)[0] for line in PYPROJECT["optional-dependencies"][extra]}


def test_every_extra_brings_what_its_errors_ask_for() -> None:
    for package, extra in EXTRAS.values():
        assert extra is None or package.partition("[")[0] in packages(extra), package
    core = {re.split(r"[\[><=;]", line)[0] for line in PYPROJECT["dependencies"]}
    assert core.isdisjoint(package.partition("[")[0] for package, _ in EXTRAS.values())
    (everything,) = PYPROJECT["optional-dependencies"]["all"]
    named = set(everything.partition("[")[2].rstrip("]").split(","))
    assert named == set(PYPROJECT["optional-dependencies"]) - {"all", "dev", "docs", "ray"}


def test_any_import_of_what_is_missing_names_the_extra() -> None:
    loaded, found = without_extras(IMPORT.format(core=CORE, extras=set(EXTRAS)))
    assert not loaded
    assert set(found.values()) == set(LEFT_OUT)
    assert found["prefill_router_gateway.api"] == "gateway"
    assert found["prefill_router.plotting"] == "reports"


def test_the_core_fits_judges_routes_and_imports(job: Job, tmp_path: Path) -> None:
    table = tmp_path / "scores.csv"
    table.write_text(
        "prompt,small,large\n" + "".join(f"Q{i}?,{bool(i % 2)},True\n" for i in range(40))
    )
    router, report, local = tmp_path / "router", tmp_path / "report", ("--encoder-folder", job.tiny)
    judged = ("--data", job.answers, "--store", job.states)
    done = run_without_extras(
        ("--help",),
        ("serve", "--help"),
        ("import", "routellm", table, "--out", tmp_path / "imported"),
        ("encode", job.answers, "--encoder", job.tiny, "--out", tmp_path / "states"),
        ("fit", job.answers, "--store", job.states, "--dim", 8, "--out", router),
        ("route", router, "Why?", *local, "--json"),
        ("evaluate", router, *judged, "--resamples", 0, "--out", report, "--json"),
        ("doctor", router, *judged, "--resamples", 20, "--no-probe", "--json"),
        ("keep", router, *judged, "--json"),
        ("layers", job.answers, "--store", job.states, "--dim", 8, "--json"),
    )
    codes = [code for code, *_ in done]
    assert codes[:7] == [0] * 7, done
    assert set(codes[7:]) <= {0, 3, 4, 5}, done[7:]
    assert json.loads(done[5][1])["target"]
    assert (
        json.loads(done[6][1])["queries"]
        == json.loads((report / "metrics.json").read_text())["queries"]
    )
    assert "has the numbers and no page" in done[6][2]
    assert "pip install 'prefill-router[reports]'" in done[6][2]
    assert {path.name for path in report.glob("*.csv")} == {
        "curve.csv",
        "operating_points.csv",
        "targets.csv",
    }


def test_what_needs_an_extra_names_it_before_it_begins(job: Job, tmp_path: Path) -> None:
    out, judged = ("--out", tmp_path / "out"), ("--data", job.answers, "--store", job.states)
    pool = tmp_path / "pool.yaml"
    pool.write_text(
        "providers: [{name: here, base_url: 'http://127.0.0.1:9'}]\n"
        "targets: [{name: a, input_price: 0, output_price: 0, provider: here}]\n"
    )
    wanting: dict[str, list[tuple[object, ...]]] = {
        "gateway": [
            ("serve", job.router, "--pool", pool),
            ("minipool", "serve", "--port", 0),
        ],
        "reports": [
            ("compare", "all", *judged, *out),
            ("calibration", job.router, *judged, *out),
            ("doctor", job.router, *judged, *out),
            ("layers", job.answers, "--store", job.states, *out),
            ("sweep", job.answers, "--store", job.states, *out),
            ("reproduce", job.answers, "--bench", "nvidia-v1", *out),
            ("search", "default", *judged, *out),
            ("study", "seeds", "all", *judged, *out),
            ("demo", *out),
        ],
    }
    commands = [words for asked in wanting.values() for words in asked]
    extras = [extra for extra, asked in wanting.items() for _ in asked]
    for words, extra, (code, printed, told) in zip(
        commands, extras, run_without_extras(*commands), strict=True
    ):
        assert code == 1, (words, told)
        assert not printed, words
        assert f"pip install 'prefill-router[{extra}]'" in told.splitlines()[-1], (words, told)
    assert not (tmp_path / "out").exists()
