"""LiteLLM's list of models: their prices, abilities and longest prompts.

It is read from the installed litellm, which isn't imported, or else from the copy beside this file:
`model_prices_and_context_window_backup.json` of LiteLLM (MIT licence), without the fields and the
providers that the import doesn't use. `write_copy` makes it.
"""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, final

COPY_VERSION: Final = "1.110.2"
COPY_DATE: Final = "2026-11-28"
_FILE = "litellm/model_prices_and_context_window_backup.json"
_COPY = "models.csv"
_NUMBERS = (
    "max_input_tokens",
    "input_cost_per_token",
    "output_cost_per_token",
    "cache_read_input_token_cost",
    "output_cost_per_reasoning_token",
)
_FLAGS = (
    "supports_vision",
    "supports_function_calling",
    "supports_response_schema",
    "supports_audio_input",
    "supports_pdf_input",
)
_FIELDS = ("mode", *_NUMBERS, *_FLAGS)
_PROVIDERS = (
    *("openai", "text-completion-openai", "anthropic", "azure", "bedrock", "vertex_ai", "gemini"),
    *("mistral", "groq", "xai", "deepseek", "together_ai", "fireworks_ai", "deepinfra", "cohere"),
    *("cerebras", "perplexity", "dashscope", "moonshot", "sambanova", "zai", "databricks"),
)
_ROUTED = ("chat", "completion", "embedding", "responses")


@final
@dataclass(frozen=True, kw_only=True)
class ModelList:
    """A list of models.

    Attributes:
        source: Where it is from, in words.
        models: The fields of each model by LiteLLM's name, `litellm_provider` among them.
    """

    source: str
    models: Mapping[str, Mapping[str, Any]]

    def find(self, provider: str, model: str, base: str | None = None) -> dict[str, Any]:
        """What is known of a model; empty where the list doesn't have it.

        Args:
            provider: LiteLLM's name of the provider.
            model: The provider's name of the model.
            base: The model that a deployment of any name is of, as `model_info.base_model` says.
        """
        for name in (base, model) if base else (model,):
            for key in (f"{provider}/{name}", name):
                fields = self.models.get(key)
                if fields is not None and _is_of(fields, provider):
                    has = {field: fields.get(field) for field in _FIELDS}
                    if has["mode"] == "embedding":  # has no output tokens to pay for
                        has["output_cost_per_token"] = has["output_cost_per_token"] or 0
                    return {field: value for field, value in has.items() if value is not None}
        return {}


def _is_of(fields: Mapping[str, Any], provider: str) -> bool:
    """Whether a model is this provider's, or of one of its families, as vertex_ai-anthropic."""
    return str(fields.get("litellm_provider", "")).startswith(provider)


def read_model_list() -> ModelList:
    """The installed litellm's list, or the copy where litellm isn't installed."""
    try:
        installed = distribution("litellm")
        text = Path(str(installed.locate_file(_FILE))).read_text(encoding="utf-8")
        return ModelList(
            source=f"the list of the installed litellm {installed.version}",
            models=_mappings(json.loads(text)),
        )
    except (PackageNotFoundError, OSError, ValueError):
        return read_copy()


def read_copy() -> ModelList:
    """The copy of LiteLLM's list."""
    text = (files(__package__) / _COPY).read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return ModelList(
        source=f"a copy of the list of litellm {COPY_VERSION}, made on {COPY_DATE}",
        models={row.pop("model"): _read_row(row) for row in rows},
    )


def _read_row(row: dict[str, str]) -> dict[str, Any]:
    flags = row.pop("supports").split()
    fields = {name: value for name, value in row.items() if value}
    tokens = fields.pop("max_input_tokens", None)
    return {
        **fields,
        **({} if tokens is None else {"max_input_tokens": int(tokens)}),
        **{f"supports_{flag}": True for flag in flags},
    }


def write_copy(source: Path, to: Path) -> None:
    """Make the copy from LiteLLM's own file; then set `COPY_VERSION` and `COPY_DATE`."""
    models = _mappings(json.loads(source.read_text(encoding="utf-8")))
    with to.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("model", "litellm_provider", "mode", *_NUMBERS, "supports"))
        for name, fields in sorted(models.items()):
            provider = str(fields.get("litellm_provider", ""))
            is_routed = fields.get("mode") in _ROUTED and "input_cost_per_token" in fields
            if provider.startswith(_PROVIDERS) and is_routed:
                flags = [flag.removeprefix("supports_") for flag in _FLAGS if fields.get(flag)]
                numbers = [_plain(fields.get(number)) for number in _NUMBERS]
                writer.writerow((name, provider, fields.get("mode"), *numbers, " ".join(flags)))


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _mappings(value: Any) -> dict[str, Mapping[str, Any]]:
    return {name: fields for name, fields in dict(value).items() if isinstance(fields, dict)}
