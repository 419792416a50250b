"""The package as a whole: what importing it loads, its names, and what its code never does."""

import ast
import importlib
import inspect
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import prefill_router
from prefill_router import errors
from prefill_router.cli.commands import COMMANDS

pytestmark = pytest.mark.slow

SOURCES = sorted(Path(prefill_router.__file__).parent.rglob("*.py"))
HEAVY = ("torch", "transformers", "matplotlib", "huggingface_hub")
PROGRAM = "import sys; {}; print([n for n in {!r} if n in sys.modules])"
HELP = "from prefill_router.cli import app; app([{}'--help'], standalone_mode=False)"
FRAME = {"application", "commands"}
"""Of the command line, what stands before every command."""
OURS = "import sys; {}; print([n for n in sys.modules if n.startswith('prefill_router.')])"


def run_program(text: str) -> str:
    program = [sys.executable, "-c", text]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def loaded_by(statement: str, names: tuple[str, ...] = HEAVY) -> str:
    return run_program(PROGRAM.format(statement, names))


@pytest.mark.parametrize(
    "statement",
    [
        "import prefill_router",
        "import prefill_router.router, prefill_router.data, prefill_router.activations",
        "import prefill_router.cli",
        "import prefill_router.testing",
    ],
)
def test_importing_loads_nothing_heavy(statement: str) -> None:
    assert loaded_by(statement) == "[]"


def test_the_help_of_a_command_loads_nothing_heavy() -> None:
    every = "; ".join(HELP.format(f"{name!r}, ") for name in COMMANDS)
    assert loaded_by(every) == "[]"


@pytest.mark.parametrize("before", ["", "'study', "])
def test_the_list_of_commands_loads_none_of_them(before: str) -> None:
    statement = HELP.format(before)
    assert loaded_by(statement, ("numpy", "polars", "scipy", "asyncio")) == "[]"
    found = ast.literal_eval(run_program(OURS.format(statement)))
    cli = {name.removeprefix("prefill_router.") for name in found}
    assert cli == {"errors", "lazy_imports", "cli", *(f"cli.{name}" for name in FRAME)}


@pytest.mark.parametrize(
    "statement",
    [
        "from prefill_router.studies.comparison import write",
        "from prefill_router.studies.doctor import write_checkup",
        "from prefill_router.studies.search import begin, write",
    ],
)
def test_what_writes_a_report_loads_the_plotting_library_only_to_draw(statement: str) -> None:
    assert loaded_by(statement, ("matplotlib",)) == "[]"


def test_heavy_imports_would_be_seen() -> None:
    assert loaded_by("import prefill_router.encoders.pretrained") != "[]"


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
    root = Path(prefill_router.__file__).parents[1]
    parts = [path.relative_to(root).with_suffix("").parts for path in SOURCES]
    return [".".join(p[:-1] if p[-1] == "__init__" else p) for p in parts]


@pytest.mark.parametrize("name", modules())
def test_every_module_says_what_it_is_and_has_what_it_lists(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    for public in getattr(module, "__all__", ()):
        assert getattr(module, public) is not None, public


def test_every_exception_is_drawn_where_it_stands() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ([ │├└─]*)(\w+Error)\b", line)
        if found:
            depth = len(found[1]) // 4
            path = [*path[:depth], found[2]]
            drawn[found[2]] = path[-2] if depth else "Exception"
    defined = {
        name: value.__base__.__name__
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert drawn == defined


Finding = Callable[[ast.AST], bool]


def called(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in names


def imported(node: ast.AST, *names: str) -> bool:
    if isinstance(node, ast.ImportFrom):
        only_errors = all(alias.name.endswith("Error") for alias in node.names)
        return (node.module or "").split(".")[0] in names and not only_errors
    return isinstance(node, ast.Import) and any(a.name.split(".")[0] in names for a in node.names)


def catches_everything(node: ast.AST) -> bool:
    if not isinstance(node, ast.ExceptHandler):
        return False
    caught = ast.walk(node.type) if node.type else ()
    names = {n.id for n in caught if isinstance(n, ast.Name)}
    return node.type is None or bool(names & {"Exception", "BaseException"})


def passes_keywords_on(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and node.args.kwarg is not None
    )


def trusts_code(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.keyword)
        and node.arg == "trust_remote_code"
        and isinstance(node.value, ast.Constant)
        and node.value.value is not False
    )


def loads_objects(node: ast.AST) -> bool:
    """A file that may run code is read; PyTorch's are read as tensors alone."""
    if called(node, "np.load", "numpy.load"):
        return True
    is_load = isinstance(node, ast.Call) and called(node, "torch.load")
    return is_load and "weights_only=True" not in map(ast.unparse, node.keywords)


NEVER: dict[str, tuple[Finding, str]] = {
    "pickle": (
        lambda n: imported(n, "pickle", "cPickle", "dill", "joblib", "cloudpickle", "shelve"),
        "import pickle",
    ),
    "torch.load": (loads_objects, "torch.load(x, weights_only=False)"),
    "eval": (lambda n: called(n, "eval", "exec", "compile", "builtins.eval"), "eval('1')"),
    "shell": (lambda n: called(n, "os.system", "os.popen"), "os.system('ls')"),
    "unsafe YAML": (lambda n: called(n, "yaml.unsafe_load", "yaml.full_load"), "yaml.full_load(x)"),
    "code of weights": (trusts_code, "f(trust_remote_code=True)"),
    "print": (lambda n: called(n, "print"), "print('x')"),
    "assert": (lambda n: isinstance(n, ast.Assert), "assert x"),
    "global random state": (
        lambda n: called(n, "np.random.seed", "random.seed", "torch.manual_seed"),
        "np.random.seed(0)",
    ),
    "catching everything": (catches_everything, "try:\n x\nexcept (ValueError, Exception):\n y"),
    "keywords passed on": (passes_keywords_on, "def f(**options): ..."),
}


@cache
def places() -> dict[str, list[str]]:
    """Where each is found; all in one reading of the code, which takes seconds."""
    found: dict[str, list[str]] = {what: [] for what in NEVER}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for what, (finding, _) in NEVER.items():
                if finding(node):
                    found[what].append(f"{path}:{getattr(node, 'lineno', 0)}")
    return found


@pytest.mark.parametrize("what", NEVER)
def test_code_never(what: str) -> None:
    finding, example = NEVER[what]
    assert any(map(finding, ast.walk(ast.parse(example))))  # the search itself works
    assert places()[what] == []


NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
MOST_LINES = 400
"""Lines of code in a file."""
MOST_LINES_IN_ALL = 700
"""With docstrings, comments and blanks."""


def lines_of_code(source: str) -> int:
    """The lines that aren't blank, nor of comments and docstrings alone."""
    told: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            told.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - told)


def test_lines_of_code_are_those_that_do_something() -> None:
    source = (
        '"""What it is."""\n\n# why\nx = (\n    1\n)\n\ndef f():\n    """Of it."""\n    return x\n'
    )
    assert lines_of_code(source) == 5


def test_files_and_functions_are_short() -> None:
    texts = {f"{path}": path.read_text() for path in SOURCES}
    sizes = {path: lines_of_code(text) for path, text in texts.items()}
    assert {path: size for path, size in sizes.items() if size > MOST_LINES} == {}
    assert [p for p, text in texts.items() if len(text.splitlines()) > MOST_LINES_IN_ALL] == []
    long_functions = [
        f"{path}:{node.lineno} {node.name}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and (node.end_lineno or 0) - node.body[0].lineno + 1 > 60
    ]
    assert long_functions == []
