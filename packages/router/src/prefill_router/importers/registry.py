"""The formats that can be imported, by name, with their readers.

Nothing here imports a reader, so that the command's help can list the formats quickly.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

from prefill_router.plugins import Registry


@final
@dataclass(frozen=True, kw_only=True)
class Format:
    """A format that can be imported.

    Attributes:
        summary: A description in one line.
        reader: The function that reads its sources, or where it is in this package, such as
            `own_tables:read_long`.
        columns: The options of `Columns` that apply to it.
        signatures: Sets of fields; a record that has all fields of one is of this format.
        averaged: Whether a target's answers to the same prompt are runs, as in a log.
        is_votes: Whether its labels are votes between two answers.
        is_log: Whether it is a log of calls, which may be of one target and have no scores.
    """

    summary: str
    reader: str | Callable[..., Any]
    columns: frozenset[str] = frozenset()
    signatures: tuple[frozenset[str], ...] = ()
    averaged: bool = False
    is_votes: bool = False
    is_log: bool = False


_COMMON = frozenset(
    {"prompt", "query", "benchmark", "domain", "correct", "input_tokens", "output_tokens", "cost"}
    | {"scale", "repeats"}
)
_SCORE_COLUMNS = frozenset({"correct", "scale"})


def _make_signatures(*alternatives: str) -> tuple[frozenset[str], ...]:
    """Signatures, each with its fields separated by spaces."""
    return tuple(frozenset(fields.split()) for fields in alternatives)


_OWN: dict[str, Format] = {
    "llmrouterbench": Format(
        summary="LLMRouterBench: a results tree, a tar of it, or interchange JSON Lines",
        reader="benchmark_results:read_llmrouterbench",
        signatures=_make_signatures("dataset_name records", "query records usages"),
    ),
    "routerbench": Format(
        summary="RouterBench: the wide table as CSV, JSON Lines or Parquet",
        reader="own_tables:read_routerbench",
        signatures=_make_signatures("sample_id eval_name", "oracle_model_to_route_to"),
    ),
    "mmlu_pro": Format(
        summary="MMLU-Pro eval_results: one zip or JSON list per target",
        reader="benchmark_results:read_mmlu_pro",
        signatures=_make_signatures("question_id options answer_index"),
    ),
    "routellm": Format(
        summary="RouteLLM: CSV with a prompt and a boolean column per target",
        reader="own_tables:read_routellm",
    ),
    "nvidia": Format(
        summary="NVIDIA LLM Router blueprint v3: a long CSV of isCorrect",
        reader="own_tables:read_nvidia",
        signatures=_make_signatures("question model isCorrect"),
    ),
    "routerarena": Format(
        summary="RouterArena: JSON lists of predictions",
        reader="benchmark_results:read_routerarena",
        signatures=(frozenset({"global index", "prediction"}),),
    ),
    "openai_batch": Format(
        summary="OpenAI batches: the JSON Lines of the requests and of the results",
        reader="call_logs:read_openai",
        signatures=_make_signatures("custom_id body", "custom_id response"),
        averaged=True,
        is_log=True,
    ),
    "anthropic_batch": Format(
        summary="Anthropic message batches: the requests and the JSON Lines of the results",
        reader="call_logs:read_anthropic",
        signatures=_make_signatures("custom_id params", "custom_id result"),
        averaged=True,
        is_log=True,
    ),
    "litellm": Format(
        summary="LiteLLM spend logs: JSON, JSON Lines or CSV, with prompts",
        reader="call_logs:read_litellm",
        signatures=_make_signatures("request_id spend model"),
        averaged=True,
        is_log=True,
    ),
    "langfuse": Format(
        summary="Langfuse exports: observations or traces, and scores",
        reader="traces:read_langfuse",
        columns=_SCORE_COLUMNS,
        signatures=_make_signatures(
            "id type traceId",
            "id type trace_id",
            "id observations",
            "id name value traceId",
            "id name value trace_id",
        ),
        averaged=True,
        is_log=True,
    ),
    "openinference": Format(
        summary="OpenInference spans: Phoenix, Arize or OTLP JSON, and annotations",
        reader="traces:read_openinference",
        columns=_SCORE_COLUMNS,
        signatures=_make_signatures(
            "span_kind attributes",
            "attributes.openinference.span.kind",
            "resourceSpans",
            "span_kind attributes.llm.model_name",
            "span_id result annotator_kind",
        ),
        averaged=True,
        is_log=True,
    ),
    "lm_eval": Format(
        summary="lm-evaluation-harness: a folder per model with samples_TASK.jsonl",
        reader="layouts:LM_EVAL",
        columns=_SCORE_COLUMNS,
        signatures=_make_signatures("doc_id doc arguments", "doc_id doc filtered_resps"),
        averaged=True,
    ),
    "inspect_ai": Format(
        summary="inspect_ai: logs of evaluations, as .json or .eval",
        reader="layouts:INSPECT_AI",
        columns=_SCORE_COLUMNS,
        signatures=_make_signatures("eval samples", "eval plan", "epoch input model_usage"),
        averaged=True,
    ),
    "promptfoo": Format(
        summary="promptfoo: the results of an evaluation as JSON",
        reader="layouts:PROMPTFOO",
        columns=_SCORE_COLUMNS,
        signatures=_make_signatures("evalId results", "results config"),
        averaged=True,
    ),
    "votes": Format(
        summary="votes: model_a, model_b and winner, with a prompt or conversations",
        reader="layouts:VOTES",
        columns=frozenset({"correct"}),
        signatures=_make_signatures("model_a model_b winner"),
        is_votes=True,
    ),
    "long": Format(
        summary="your own table, a row per query and target: CSV, spreadsheet, JSON Lines, Parquet",
        reader="own_tables:read_long",
        columns=_COMMON | {"target", "effort"},
    ),
    "wide": Format(
        summary="your own table, a column per target: CSV, spreadsheet, JSON Lines or Parquet",
        reader="own_tables:read_wide",
        columns=_COMMON | {"targets"},
    ),
}
FORMATS: Final[Registry[Format]] = Registry(_OWN, "prefill_router.importers", expects=Format)
"""Every format by its name on the command line; other distributions add some."""
