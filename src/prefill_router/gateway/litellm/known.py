"""Providers by LiteLLM's names for them: where their OpenAI-compatible endpoints are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from prefill_router.targets import Dialect, Endpoint


@final
@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of a provider by its name alone.

    Attributes:
        base_url: Its endpoint; None where every deployment has its own.
        key_env: The variable that LiteLLM reads its key from; None where it needs none.
        dialect: What it does differently from OpenAI.
        serves: The calls that it serves; None for those of its dialect.
        path: What an `api_base` without a path is completed by.
    """

    base_url: str | None = None
    key_env: str | None = None
    dialect: Dialect = "openai"
    serves: tuple[Endpoint, ...] | None = None
    path: str = ""


_OLLAMA = Known(
    base_url="http://127.0.0.1:11434/v1", serves=("chat", "completions", "embeddings"), path="/v1"
)
_VLLM = Known(dialect="vllm")
KNOWN: Mapping[str, Known] = {
    "openai": Known(base_url="https://api.openai.com/v1", key_env="OPENAI_API_KEY"),
    "text-completion-openai": Known(
        base_url="https://api.openai.com/v1", key_env="OPENAI_API_KEY", serves=("completions",)
    ),
    "anthropic": Known(
        base_url="https://api.anthropic.com/v1",
        key_env="ANTHROPIC_API_KEY",
        dialect="anthropic",
        path="/v1",
    ),
    "openrouter": Known(
        base_url="https://openrouter.ai/api/v1", key_env="OPENROUTER_API_KEY", dialect="openrouter"
    ),
    "deepseek": Known(
        base_url="https://api.deepseek.com/v1", key_env="DEEPSEEK_API_KEY", dialect="deepseek"
    ),
    "dashscope": Known(
        base_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        key_env="DASHSCOPE_API_KEY",
        dialect="qwen",
    ),
    "groq": Known(
        base_url="https://api.groq.com/openai/v1",
        key_env="GROQ_API_KEY",
        serves=("chat", "responses"),
    ),
    "together_ai": Known(
        base_url="https://api.together.xyz/v1",
        key_env="TOGETHERAI_API_KEY",
        serves=("chat", "completions", "embeddings"),
    ),
    "mistral": Known(
        base_url="https://api.mistral.ai/v1",
        key_env="MISTRAL_API_KEY",
        serves=("chat", "embeddings"),
    ),
    "fireworks_ai": Known(
        base_url="https://api.fireworks.ai/inference/v1",
        key_env="FIREWORKS_API_KEY",
        serves=("chat", "completions", "embeddings"),
    ),
    "xai": Known(
        base_url="https://api.x.ai/v1", key_env="XAI_API_KEY", serves=("chat", "responses")
    ),
    "gemini": Known(
        base_url="https://generativelanguage.googleapis.com/v1beta/openai",
        key_env="GEMINI_API_KEY",
        serves=("chat", "embeddings"),
    ),
    "nvidia_nim": Known(
        base_url="https://integrate.api.nvidia.com/v1",
        key_env="NVIDIA_NIM_API_KEY",
        serves=("chat", "completions", "embeddings"),
    ),
    "deepinfra": Known(
        base_url="https://api.deepinfra.com/v1/openai",
        key_env="DEEPINFRA_API_KEY",
        serves=("chat", "completions", "embeddings"),
    ),
    "cerebras": Known(
        base_url="https://api.cerebras.ai/v1",
        key_env="CEREBRAS_API_KEY",
        serves=("chat", "completions"),
    ),
    "ollama": _OLLAMA,
    "ollama_chat": _OLLAMA,
    "hosted_vllm": _VLLM,
    "vllm": _VLLM,
    "custom_openai": Known(),
    "openai_like": Known(),
    "litellm_proxy": Known(),
    "lm_studio": Known(),
    "llamafile": Known(),
}
"""Providers that speak OpenAI's protocol (https://docs.litellm.ai/docs/providers)."""

FOREIGN = frozenset(
    (
        *("azure", "azure_ai", "azure_text", "bedrock", "bedrock_converse", "sagemaker"),
        *("sagemaker_chat", "vertex_ai", "vertex_ai_beta", "cohere", "cohere_chat", "replicate"),
        *("huggingface", "watsonx", "databricks", "snowflake", "cloudflare", "predibase"),
        *("oobabooga", "nlp_cloud", "petals", "triton", "clarifai", "palm", "ai21"),
    )
)
"""Providers whose addresses in LiteLLM's files lead to protocols of their own."""

_FAMILIES = (
    ("openai", ("gpt-", "chatgpt-", "o1", "o3", "o4")),
    ("anthropic", ("claude-",)),
)


def provider_of(model: str) -> str | None:
    """The provider of a model that is named without one; None where the name doesn't tell."""
    for provider, beginnings in _FAMILIES:
        if model.startswith(beginnings):
            return provider
    return None
