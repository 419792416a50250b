"""The wheel and the sdist: whole, installed where nothing but what they declare is, and at work."""

import importlib.metadata as metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterable
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
EXTRAS = ("gateway", "reports")
"""What `demo` needs beside the core."""
MOST, MOST_IN_ALL = 25, 50


def run(*line: object, cwd: Path | None = None) -> str:
    """What a command prints; it must not fail."""
    outside = {n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "PYTEST"))}
    words = [*map(str, line)]
    done = subprocess.run(words, cwd=cwd, env=outside, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def sdist(built: Path) -> Path:
    (found,) = built.glob("*.tar.gz")
    return found


def declared(lines: Iterable[str], extras: Iterable[str]) -> set[str]:
    """The distributions that these requirements need, with what they need in turn."""
    found: set[str] = set()
    waiting = [(Requirement(line), extra) for line in lines for extra in ("", *extras)]
    while waiting:
        need, extra = waiting.pop()
        if need.marker is not None and not need.marker.evaluate({"extra": extra}):
            continue
        known = metadata.distribution(need.name)
        wanted = {f"{known.name}[{one}]" for one in ("", *need.extras)}
        if not wanted <= found:
            found |= wanted
            lines = known.requires or ()
            waiting += [(Requirement(line), one) for line in lines for one in ("", *need.extras)]
    return {name.partition("[")[0] for name in found}


def install(names: Iterable[str], environment: Path) -> None:
    """Link the files of distributions that are installed here into another environment."""
    here = Path(sysconfig.get_path("purelib"))
    (there,) = (environment / "lib").glob("python*/site-packages")
    for name in names:
        for file in metadata.files(name) or ():
            source = Path(str(file.locate()))
            if here in source.parents and source.is_file() and "__pycache__" not in source.parts:
                for one in filter(Path.is_file, (source, *_bytecode(source))):
                    place = there / one.relative_to(here)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    if not place.exists():
                        _link(one, place)


def _bytecode(source: Path) -> list[Path]:
    return [Path(cache_from_source(source))] if source.suffix == ".py" else []


def _link(source: Path, place: Path) -> None:
    try:
        os.link(source, place)
    except OSError:  # another file system
        shutil.copy2(source, place)


def requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as whole:
        (name,) = (n for n in whole.namelist() if n.endswith(".dist-info/METADATA"))
        lines = whole.read(name).decode().splitlines()
    return [line.split(": ", 1)[1] for line in lines if line.startswith("Requires-Dist: ")]


def test_both_pass_twine(wheel: Path, sdist: Path) -> None:
    said = run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    assert said.count("PASSED") == 2


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    files = (path for path in (ROOT / "src" / "prefill_router").rglob("*") if path.is_file())
    kept = {
        str(path.relative_to(ROOT / "src")) for path in files if "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as whole:
        assert {n for n in whole.namelist() if n.startswith("prefill_router/")} == kept


def test_the_sdist_makes_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as whole:
        whole.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=source)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_core_has_few_dependencies(wheel: Path) -> None:
    core = [one for one in requirements(wheel) if "extra ==" not in one]
    assert 0 < len(core) < MOST
    assert len(core) < len(declared(core, ())) < MOST_IN_ALL


def test_what_is_installed_does_the_job_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    environment, outside = tmp_path / "environment", tmp_path / "outside"
    venv.create(environment, symlinks=True)
    outside.mkdir()
    install(declared(requirements(wheel), EXTRAS), environment)
    python = environment / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel)
    place = run(python, "-c", "import prefill_router; print(prefill_router.__file__)", cwd=outside)
    assert str(environment) in place
    lacking = run(python, "-c", "import importlib.util as u; print(u.find_spec('openai'))")
    assert lacking.strip() == "None"
    command = environment / "bin" / "prefill-router"
    verdict = json.loads(run(command, "demo", "--questions", 200, "--json", cwd=outside))
    assert verdict
    assert (outside / "demo" / "report" / "index.html").is_file()
