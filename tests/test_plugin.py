"""Another distribution's parts work from the command line, and a broken one is named.

`examples/plugin` is installed in an environment of its own, which sees the packages of this one.
"""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packages.router.tests.commands import RUN_EACH, read_each, words_of_each
from packages.router.tests.predictors.fit_contract import FIT_CHECKS, Case

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "plugin"
SOURCES = tuple(map(str, sorted((ROOT / "packages").glob("*/src"))))
PROGRAM = "from prefill_router.cli import main; main()"
QUESTIONS = 160
BROKEN = """\
[prefill_router.predictors]
broken_predictor = broken_parts:ENTRY
[prefill_router.importers]
broken_format = broken_parts:FORMAT
[prefill_router.commands]
broken_table = broken_parts:COMMANDS
"""


@dataclass(frozen=True)
class Place:
    """An environment, and a folder to work in.

    Attributes:
        python: The environment's interpreter.
        folder: The working folder.
        paths: Further folders to import from.
    """

    python: Path
    folder: Path
    paths: tuple[str, ...] = ()

    def run(self, *arguments: object, program: str = PROGRAM) -> "subprocess.CompletedProcess[str]":
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*self.paths, *SOURCES]),
            "PREFILL_ROUTER_CACHE": str(self.folder / "cache"),
            "COLUMNS": "200",
        }
        words = [str(self.python), "-c", program, *map(str, arguments)]
        return subprocess.run(
            words, cwd=self.folder, env=variables, capture_output=True, text=True, check=False
        )

    def read(self, *arguments: object) -> str:
        """What a command prints; it must not fail."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def read_each(self, *commands: Sequence[object]) -> list[str]:
        """What each command prints, all in one process; none must fail."""
        done = self.run(words_of_each(*commands), program=RUN_EACH)
        assert done.returncode == 0, done.stderr
        each = read_each(done.stdout)
        assert not any(result.code for result in each), each
        return [result.out for result in each]

    def refuse(self, *arguments: object) -> str:
        """The only line that a command prints, which is an error."""
        done = self.run(*arguments)
        assert done.returncode == 1, done.stdout + done.stderr
        (line,) = done.stderr.strip().splitlines()
        assert line.startswith("error: ")
        return line


def write_tally(path: Path) -> None:
    """Short questions are easy for both targets, long ones for the large target alone."""
    random = np.random.default_rng(0)
    records = []
    for number in range(QUESTIONS):
        words = int(random.integers(4, 60))
        chances = {"small": 0.9 - words / 75, "large": 0.9}
        records.append(
            {
                "question": f"Question {number}: {'really ' * words}why?",
                "runs": 5,
                "right": {name: int(random.binomial(5, p)) for name, p in chances.items()},
                "usd": {"small": 0.0001 * words, "large": 0.0004 * words},
            }
        )
    path.write_text(json.dumps(records))


def write_broken(folder: Path) -> str:
    """A distribution that is installed and can't be imported."""
    (folder / "broken_parts.py").write_text('raise RuntimeError("it needs something older")\n')
    information = folder / "prefill_router_broken-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: prefill-router-broken\nVersion: 1.0\n"
    )
    (information / "entry_points.txt").write_text(BROKEN)
    return str(folder)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """An environment with the example, and the files for its commands."""
    root, folder = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("work")
    venv.create(root, symlinks=True, with_pip=False)
    python = root / "bin" / "python"
    (packages,) = (root / "lib").glob("python*/site-packages")
    here = sysconfig.get_path("purelib")
    (packages / "outside.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    line = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    line += ["--no-deps", "--no-build-isolation", "--no-index", str(EXAMPLE)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    write_tally(folder / "tally.json")
    return Place(python, folder)


@pytest.fixture(scope="module")
def beside_broken(environment: Place, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The same environment, with a broken distribution beside the example."""
    broken = write_broken(tmp_path_factory.mktemp("broken"))
    return Place(environment.python, environment.folder, (broken,))


@pytest.fixture(scope="module")
def answers(environment: Place) -> Path:
    environment.read("import", "tally", "tally.json", "--out", "answers")
    return environment.folder / "answers"


def write_recipe(folder: Path, predictor: str) -> Path:
    path = folder / f"{predictor}.yaml"
    path.write_text(f"features: complexity\npredictor: {predictor}\n")
    return path


@pytest.fixture(scope="module")
def router(environment: Place, answers: Path) -> Path:
    recipe = write_recipe(environment.folder, "nearest_mean")
    environment.read("fit", answers, "--recipe", recipe, "--out", "router")
    return environment.folder / "router"


def test_its_parts_are_listed(environment: Place) -> None:
    commands, importing, listed = environment.read_each(
        ["--help"], ["import", "--help"], ["list-plugins"]
    )
    assert "List the parts that other distributions add." in commands
    assert "tally: Tallies" in importing
    lines = [line.split() for line in listed.splitlines()]
    for part, kind in (("nearest_mean", "predictors"), ("tally", "importers")):
        assert [part, kind, "prefill-router-example"] in lines


def test_its_importer_reads_shares_of_right_answers(environment: Place, answers: Path) -> None:
    summary = json.loads(environment.read("describe", answers, "--json"))
    assert f'"queries": {QUESTIONS}' in json.dumps(summary)


def test_its_predictor_is_fitted_saved_and_loaded(environment: Place, router: Path) -> None:
    questions = [["route", router, f"Question: {'really ' * n}why?", "--json"] for n in (4, 59)]
    shown, *decided = environment.read_each(["show", router], *questions)
    assert "nearest_mean" in shown
    easy, hard = map(json.loads, decided)
    assert _chance(easy, "small") > 0.6 > 0.4 > _chance(hard, "small")


def _chance(decision: Mapping[str, Any], target: str) -> float:
    return float(decision["targets"][target]["correctness"])


def test_a_broken_distribution_is_named_and_the_rest_works(beside_broken: Place) -> None:
    commands, importing, listed = beside_broken.read_each(
        ["--help"], ["import", "--help"], ["list-plugins"]
    )
    for shown, part in ((commands, "broken_table"), (importing, "broken_format")):
        text = " ".join(shown.split())
        assert f"'{part}' of the distribution 'prefill-router-broken' can't be loaded" in text
        assert "RuntimeError: it needs something older" in text
    assert "list-plugins" in commands
    assert "tally: Tallies" in importing
    assert "broken_predictor" in listed


def test_a_router_is_used_beside_a_broken_distribution(beside_broken: Place, router: Path) -> None:
    assert beside_broken.read("route", router, "Why?") == Place(
        beside_broken.python, beside_broken.folder
    ).read("route", router, "Why?")


def test_a_broken_predictor_is_an_error_that_names_its_distribution(
    beside_broken: Place, answers: Path
) -> None:
    recipe = write_recipe(beside_broken.folder, "broken_predictor")
    line = beside_broken.refuse("fit", answers, "--recipe", recipe, "--out", "unmade")
    assert "'broken_predictor' of the distribution 'prefill-router-broken'" in line
    assert "it needs something older" in line
    assert not (beside_broken.folder / "unmade").exists()


def test_a_router_whose_predictor_is_not_installed_is_refused(
    environment: Place, router: Path
) -> None:
    line = Place(Path(sys.executable), environment.folder).refuse("route", router, "Why?")
    assert "the predictor is of the kind 'nearest_mean'" in line
    assert "the distribution that adds the kind" in line


@pytest.mark.parametrize("check", FIT_CHECKS)
def test_its_predictor_keeps_the_contract(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE / "src")
    from prefill_router_example.nearest_mean import NearestMean, NearestMeanConfig

    FIT_CHECKS[check](Case(config=NearestMeanConfig(), load=NearestMean.from_dict))


def test_the_guide_shows_lines_of_the_example() -> None:
    guide = (ROOT / "docs" / "guides" / "extending.md").read_text(encoding="utf-8")
    excerpt = guide.split("```python\n")[1].split("```")[0]
    source = (EXAMPLE / "src" / "prefill_router_example" / "tally.py").read_text(encoding="utf-8")
    assert [line for line in excerpt.splitlines() if line not in source.splitlines()] == []
