"""Commands on a cluster write and print what they do without it."""

import re
from pathlib import Path

import pytest

from packages.router.tests.commands import succeeded
from packages.router.tests.engines.conftest import RayCluster, RayDriver, content
from prefill_router.data import write_dataset
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow

RECIPES = """
routers:
  linear: {features: complexity, predictor: {kind: logistic}}
  near: {features: complexity, predictor: {kind: knn_score, k: 5}}
"""
SPACE = """
features: {text: complexity}
predictors:
  linear: {kind: logistic, try: {c: [0.1, 1]}}
  constant: constant
calibrations: [none, platt]
"""
SHOWN = ("html", "csv", "times.json")
COMMANDS = {
    "compare": ("compare", "routers.yaml", "--resamples", 20),
    "study": ("study", "seeds", "routers.yaml", "--count", 2),
    "search": ("search", "space.yaml", "--trials", 3, "--folds", 3, "--resamples", 20),
}


def timeless(text: str, folder: Path) -> str:
    """A text without durations, dates and the name of its folder."""
    without = re.sub(r'"(seconds|minutes)": [0-9.e-]+|"20[0-9T:+-]{23}"', "TIME", text)
    return without.replace(str(folder), "FOLDER")


def written(folder: Path) -> dict[str, object]:
    """What a command wrote, but for pages and tables with durations."""
    files = {n: b for n, b in content(folder).items() if not n.endswith(SHOWN)}
    return {n: timeless(b.decode(), folder) if n.endswith("json") else b for n, b in files.items()}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_gives_the_same_on_the_cluster(
    name: str, cluster: RayCluster, driver: RayDriver, tmp_path: Path
) -> None:
    write_dataset(make_routing_dataset(queries=80), tmp_path / "answers")
    (tmp_path / "routers.yaml").write_text(RECIPES)
    (tmp_path / "space.yaml").write_text(SPACE)
    given = [tmp_path / word if str(word).endswith("yaml") else word for word in COMMANDS[name]]
    words = [*given, "--data", tmp_path / "answers", "--json"]
    local = succeeded(*words, "--out", tmp_path / "local")
    engine = ["--engine", "ray", "--address", cluster.address, "--workers", "1"]
    done = driver.call("command", *words, "--out", tmp_path / "ray", *engine)
    assert done["code"] == 0, done["err"]
    assert timeless(done["out"], tmp_path / "ray") == timeless(local, tmp_path / "local")
    assert written(tmp_path / "ray") == written(tmp_path / "local")


def test_the_papers_tables_are_the_same(cluster: RayCluster, driver: RayDriver) -> None:
    assert driver.call("paper", cluster.address) == driver.call("paper", None)
