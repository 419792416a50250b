"""Providers by LiteLLM's names for them: where their OpenAI-compatible endpoints are.

Names, addresses and key variables are those of LiteLLM 1.109.1 (`litellm.get_llm_provider` and
main.py), which are the same in 1.106.2; `benchmarks/litellm_real.py` compares. Three addresses are
others: LiteLLM speaks their own protocols with Gemini and Ollama, and asks DeepSeek where it tries
new things.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from prefill_router.targets import Dialect, Endpoint


@final
@dataclass(frozen=True, kw_only=True)
class KnownProvider:
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


_OLLAMA = KnownProvider(
    base_url="http://127.0.0.1:11434/v1", serves=("chat", "completions", "embeddings"), path="/v1"
)
_VLLM = KnownProvider(dialect="vllm")
_CHATS = {
    "ai21_chat": ("https://api.ai21.com/studio/v1", "AI21_API_KEY"),
    "aiml": ("https://api.aimlapi.com/v1", "AIML_API_KEY"),
    "baseten": ("https://inference.baseten.co/v1", "BASETEN_API_KEY"),
    "featherless_ai": ("https://api.featherless.ai/v1", "FEATHERLESS_AI_API_KEY"),
    "friendliai": ("https://api.friendli.ai/serverless/v1", "FRIENDLIAI_API_KEY"),
    "github": ("https://models.inference.ai.azure.com", "GITHUB_API_KEY"),
    "hyperbolic": ("https://api.hyperbolic.xyz/v1", "HYPERBOLIC_API_KEY"),
    "inception": ("https://api.inceptionlabs.ai/v1", "INCEPTION_API_KEY"),
    "lambda_ai": ("https://api.lambda.ai/v1", "LAMBDA_API_KEY"),
    "meta_llama": ("https://api.llama.com/compat/v1", "LLAMA_API_KEY"),
    "moonshot": ("https://api.moonshot.ai/v1", "MOONSHOT_API_KEY"),
    "nebius": ("https://api.studio.nebius.ai/v1", "NEBIUS_API_KEY"),
    "novita": ("https://api.novita.ai/v3/openai", "NOVITA_API_KEY"),
    "nscale": ("https://inference.api.nscale.com/v1", "NSCALE_API_KEY"),
    "perplexity": ("https://api.perplexity.ai", "PERPLEXITYAI_API_KEY"),
    "sambanova": ("https://api.sambanova.ai/v1", "SAMBANOVA_API_KEY"),
    "scaleway": ("https://api.scaleway.ai/v1", "SCW_SECRET_KEY"),
    "v0": ("https://api.v0.dev/v1", "V0_API_KEY"),
    "vercel_ai_gateway": ("https://ai-gateway.vercel.sh/v1", "VERCEL_AI_GATEWAY_API_KEY"),
    "volcengine": ("https://ark.cn-beijing.volces.com/api/v3", "VOLCENGINE_API_KEY"),
    "wandb": ("https://api.inference.wandb.ai/v1", "WANDB_API_KEY"),
    "zai": ("https://api.z.ai/api/paas/v4", "ZAI_API_KEY"),
}
"""Providers of which no more is relied on than that they serve chats: address and key variable."""
KNOWN: Mapping[str, KnownProvider] = {
    "openai": KnownProvider(base_url="https://api.openai.com/v1", key_env="OPENAI_API_KEY"),
    "text-completion-openai": KnownProvider(
        base_url="https://api.openai.com/v1", key_env="OPENAI_API_KEY", serves=("completions",)
    ),
    "anthropic": KnownProvider(
        base_url="https://api.anthropic.com/v1",
        key_env="ANTHROPIC_API_KEY",
        dialect="anthropic",
        path="/v1",
    ),
    "openrouter": KnownProvider(
        base_url="https://openrouter.ai/api/v1", key_env="OPENROUTER_API_KEY", dialect="openrouter"
    ),
    "deepseek": KnownProvider(
        base_url="https://api.deepseek.com/v1", key_env="DEEPSEEK_API_KEY", dialect="deepseek"
    ),
    "dashscope": KnownProvider(
        base_url="https://dashscope.aliyuncs.com/compatible-mode/v1",
        key_env="DASHSCOPE_API_KEY",
        dialect="qwen",
    ),
    "groq": KnownProvider(
        base_url="https://api.groq.com/openai/v1",
        key_env="GROQ_API_KEY",
        serves=("chat", "responses"),
    ),
    "together_ai": KnownProvider(
        base_url="https://api.together.ai/v1",
        key_env="TOGETHERAI_API_KEY",
        serves=("chat", "completions", "embeddings"),
    ),
    "mistral": KnownProvider(
        base_url="https://api.mistral.ai/v1",
        key_env="MISTRAL_API_KEY",
        serves=("chat", "embeddings"),
    ),
    "fireworks_ai": KnownProvider(
        base_url="https://api.fireworks.ai/inference/v1",
        key_env="FIREWORKS_API_KEY",
        serves=("chat", "completions", "embeddings"),
    ),
    "xai": KnownProvider(
        base_url="https://api.x.ai/v1", key_env="XAI_API_KEY", serves=("chat", "responses")
    ),
    "gemini": KnownProvider(
        base_url="https://generativelanguage.googleapis.com/v1beta/openai",
        key_env="GEMINI_API_KEY",
        serves=("chat", "embeddings"),
    ),
    "nvidia_nim": KnownProvider(
        base_url="https://integrate.api.nvidia.com/v1",
        key_env="NVIDIA_NIM_API_KEY",
        serves=("chat", "completions", "embeddings"),
    ),
    "deepinfra": KnownProvider(
        base_url="https://api.deepinfra.com/v1/openai",
        key_env="DEEPINFRA_API_KEY",
        serves=("chat", "completions", "embeddings"),
    ),
    "cerebras": KnownProvider(
        base_url="https://api.cerebras.ai/v1",
        key_env="CEREBRAS_API_KEY",
        serves=("chat", "completions"),
    ),
    "ollama": _OLLAMA,
    "ollama_chat": _OLLAMA,
    "hosted_vllm": _VLLM,
    "vllm": _VLLM,
    "custom_openai": KnownProvider(),
    "openai_like": KnownProvider(),
    "litellm_proxy": KnownProvider(),
    "lm_studio": KnownProvider(),
    "llamafile": KnownProvider(base_url="http://127.0.0.1:8080/v1"),
    **{
        name: KnownProvider(base_url=url, key_env=variable, serves=("chat",))
        for name, (url, variable) in _CHATS.items()
    },
}
"""Providers that speak OpenAI's protocol (https://docs.litellm.ai/docs/providers)."""

FOREIGN = frozenset(
    (
        *("azure", "azure_ai", "azure_text", "bedrock", "sagemaker", "sagemaker_chat"),
        *("sagemaker_nova", "vertex_ai", "vertex_ai_beta", "cohere", "cohere_chat", "replicate"),
        *("huggingface", "watsonx", "watsonx_text", "databricks", "snowflake", "cloudflare"),
        *("predibase", "oobabooga", "nlp_cloud", "petals", "triton", "clarifai", "ai21", "oci"),
        "anthropic_text",
    )
)
"""Providers whose addresses in LiteLLM's files lead to protocols of their own."""

_FAMILIES = (
    ("text-completion-openai", ("gpt-3.5-turbo-instruct", "davinci-002", "babbage-002")),
    ("openai", ("gpt-", "chatgpt-", "o1", "o3", "o4", "ft:gpt-", "text-embedding-")),
    ("anthropic", ("claude-",)),
    ("vertex_ai", ("gemini-",)),
)


def provider_of(model: str) -> str | None:
    """The provider of a model that is named without one; None where the name doesn't tell."""
    for provider, beginnings in _FAMILIES:
        if model.startswith(beginnings):
            return provider
    return None
