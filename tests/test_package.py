"""The packages as a whole: what importing them loads, their names, and unsafe calls."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import prefill_router
import prefill_router_gateway
import prefill_router_lab
import prefill_router_minipool
from prefill_router.cli.commands import all_commands

pytestmark = pytest.mark.slow

ROOTS = [
    Path(str(package.__file__)).parent
    for package in (
        prefill_router,
        prefill_router_gateway,
        prefill_router_lab,
        prefill_router_minipool,
    )
]
SOURCES = sorted(path for root in ROOTS for path in root.rglob("*.py"))
HEAVY = ("torch", "transformers", "matplotlib", "huggingface_hub")
PROGRAM = "import sys; {}; print([n for n in {!r} if n in sys.modules])"
HELP = "from prefill_router.cli import app; app([{}'--help'], standalone_mode=False)"


def list_loaded(statement: str, names: tuple[str, ...] = HEAVY) -> str:
    program = [sys.executable, "-c", PROGRAM.format(statement, names)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "statement",
    [
        "import prefill_router.router, prefill_router.data, prefill_router.activations",
        "import prefill_router.cli",
        "import prefill_router.testing",
        "import prefill_router_gateway",
        "import prefill_router_lab.cli.commands",
        "import prefill_router_minipool",
    ],
)
def test_importing_loads_nothing_heavy(statement: str) -> None:
    assert list_loaded(statement) == "[]"


def test_the_help_of_a_command_loads_nothing_heavy() -> None:
    every = "; ".join(HELP.format(f"{name!r}, ") for name in all_commands()[0])
    assert list_loaded(every) == "[]"


@pytest.mark.parametrize("before", ["", "'study', "])
def test_the_list_of_commands_loads_nothing_that_computes(before: str) -> None:
    assert list_loaded(HELP.format(before), ("numpy", "polars", "scipy", "asyncio")) == "[]"


@pytest.mark.parametrize(
    "statement",
    [
        "from prefill_router.comparison import write",
        "from prefill_router.doctor import write_checkup",
        "from prefill_router_lab.search import begin, write",
    ],
)
def test_what_writes_a_report_loads_the_plotting_library_only_to_draw(statement: str) -> None:
    assert list_loaded(statement, ("matplotlib",)) == "[]"


def test_heavy_imports_would_be_seen() -> None:
    assert list_loaded("import prefill_router.reporting.figures") != "[]"


def test_importing_does_no_work() -> None:
    program = "import prefill_router, sys; sys.exit(len(sys.modules) > 200)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_public_names() -> None:
    for name in prefill_router.__all__:
        assert getattr(prefill_router, name) is not None
        assert name in dir(prefill_router)
    assert prefill_router.__all__ == sorted(prefill_router.__all__)
    with pytest.raises(AttributeError, match="attribute nonsense"):
        _ = prefill_router.nonsense


def modules() -> list[str]:
    parts = [
        path.relative_to(root.parent).with_suffix("").parts
        for root in ROOTS
        for path in SOURCES
        if root in path.parents
    ]
    return [".".join(p[:-1] if p[-1] == "__init__" else p) for p in parts]


@pytest.mark.parametrize("name", modules())
def test_every_module_can_be_imported_and_has_what_it_lists(name: str) -> None:
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        assert getattr(module, public) is not None, public


Finding = Callable[[ast.AST], bool]


def is_call(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Call) and dotted_name(node.func) in names


def dotted_name(node: ast.AST) -> str:
    """A name with its attributes, as it is written; nothing else is looked for."""
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def is_import(node: ast.AST, *names: str) -> bool:
    if isinstance(node, ast.ImportFrom):
        only_errors = all(alias.name.endswith("Error") for alias in node.names)
        return (node.module or "").split(".")[0] in names and not only_errors
    return isinstance(node, ast.Import) and any(a.name.split(".")[0] in names for a in node.names)


def trusts_code(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.keyword)
        and node.arg == "trust_remote_code"
        and isinstance(node.value, ast.Constant)
        and node.value.value is not False
    )


def loads_objects(node: ast.AST) -> bool:
    """A file that may run code is read; PyTorch's are read as tensors alone."""
    if is_call(node, "np.load", "numpy.load"):
        return True
    is_load = isinstance(node, ast.Call) and is_call(node, "torch.load")
    return is_load and "weights_only=True" not in map(ast.unparse, node.keywords)


NEVER: dict[str, tuple[Finding, str]] = {
    "pickle": (
        lambda n: is_import(n, "pickle", "cPickle", "dill", "joblib", "cloudpickle", "shelve"),
        "import pickle",
    ),
    "torch.load": (loads_objects, "torch.load(x, weights_only=False)"),
    "eval": (lambda n: is_call(n, "eval", "exec", "compile", "builtins.eval"), "eval('1')"),
    "shell": (lambda n: is_call(n, "os.system", "os.popen"), "os.system('ls')"),
    "unsafe YAML": (
        lambda n: is_call(n, "yaml.unsafe_load", "yaml.full_load"),
        "yaml.full_load(x)",
    ),
    "code of weights": (trusts_code, "f(trust_remote_code=True)"),
    "global random state": (
        lambda n: is_call(n, "np.random.seed", "random.seed", "torch.manual_seed"),
        "np.random.seed(0)",
    ),
}


KINDS = (ast.Call, ast.Import, ast.ImportFrom, ast.keyword)
"""The kinds of nodes that are searched."""


@cache
def places() -> dict[str, list[str]]:
    """The lines that have each; the code is read once, which takes seconds."""
    lines: dict[str, list[str]] = {what: [] for what in NEVER}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for what, (finding, _) in NEVER.items() if isinstance(node, KINDS) else ():
                if finding(node):
                    lines[what].append(f"{path}:{getattr(node, 'lineno', 0)}")
    return lines


@pytest.mark.parametrize("what", NEVER)
def test_code_never(what: str) -> None:
    finding, example = NEVER[what]
    found = (n for n in ast.walk(ast.parse(example)) if isinstance(n, KINDS))
    assert any(map(finding, found))  # the search itself works
    assert places()[what] == []
