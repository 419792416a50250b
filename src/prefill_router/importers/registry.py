"""The formats that can be imported, by name, with their readers.

Nothing here imports a reader, so that the command's help can list the formats quickly.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final


@final
@dataclass(frozen=True, kw_only=True)
class Format:
    """A format that can be imported.

    Attributes:
        summary: A description in one line.
        reader: The module and function that read its sources, such as `long_tables:read_long`.
        columns: The options of `Columns` that apply to it.
    """

    summary: str
    reader: str
    columns: frozenset[str] = frozenset()


_COMMON = frozenset(
    {"prompt", "query", "benchmark", "domain", "correct", "input_tokens", "output_tokens", "cost"}
    | {"scale", "repeats"}
)

FORMATS: Final[Mapping[str, Format]] = {
    "llmrouterbench": Format(
        summary="LLMRouterBench: a results tree, a tar of it, or interchange JSON Lines",
        reader="llmrouterbench:read",
    ),
    "routerbench": Format(
        summary="RouterBench: the wide table as CSV, JSON Lines or Parquet",
        reader="wide_tables:read_routerbench",
    ),
    "mmlu_pro": Format(
        summary="MMLU-Pro eval_results: one zip or JSON list per target", reader="mmlu_pro:read"
    ),
    "routellm": Format(
        summary="RouteLLM: CSV with a prompt and a boolean column per target",
        reader="wide_tables:read_routellm",
    ),
    "nvidia": Format(
        summary="NVIDIA LLM Router blueprint v3: a long CSV of isCorrect",
        reader="long_tables:read_nvidia",
    ),
    "routerarena": Format(
        summary="RouterArena: JSON lists of predictions", reader="routerarena:read"
    ),
    "long": Format(
        summary="your own table, a row per query and target: CSV, JSON Lines or Parquet",
        reader="long_tables:read_long",
        columns=_COMMON | {"target"},
    ),
    "wide": Format(
        summary="your own table, a column per target: CSV, JSON Lines or Parquet",
        reader="wide_tables:read_wide",
        columns=_COMMON | {"targets"},
    ),
}
"""Every format by its name on the command line."""
