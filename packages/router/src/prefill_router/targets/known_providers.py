"""Providers that use OpenAI's protocol: the address, key variable and dialect of each, by name.

Names, addresses and key variables are those of LiteLLM 1.109.1 (`litellm.get_llm_provider` and
main.py), which are the same in 1.106.2; `benchmarks/litellm_real.py` compares. Four addresses
differ: LiteLLM uses the native protocols of Azure, Gemini and Ollama, and DeepSeek's beta endpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from prefill_router.targets.provider import Dialect, Endpoint


@final
@dataclass(frozen=True)
class KnownProvider:
    """What the name of a provider implies.

    Attributes:
        base_url: Its endpoint; None where every deployment has its own.
        key_env: The environment variable of its key in LiteLLM; None where it needs none.
        dialect: Its dialect of OpenAI's protocol.
        serves: The endpoints that it serves; None for those of its dialect.
        path: The path that is added to an `api_base` without one.
    """

    base_url: str | None = None
    key_env: str | None = None
    dialect: Dialect = "openai"
    serves: tuple[Endpoint, ...] | None = None
    path: str = ""


_CHAT: tuple[Endpoint, ...] = ("chat",)
_EMBEDS: tuple[Endpoint, ...] = ("chat", "embeddings")
_THREE: tuple[Endpoint, ...] = ("chat", "completions", "embeddings")
_OPENAI = "https://api.openai.com/v1"
_ROWS: Mapping[str, tuple[str, str, tuple[Endpoint, ...] | None]] = {
    "ai21_chat": ("https://api.ai21.com/studio/v1", "AI21_API_KEY", _CHAT),
    "aiml": ("https://api.aimlapi.com/v1", "AIML_API_KEY", _CHAT),
    "baseten": ("https://inference.baseten.co/v1", "BASETEN_API_KEY", _CHAT),
    "cerebras": ("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY", ("chat", "completions")),
    "deepinfra": ("https://api.deepinfra.com/v1/openai", "DEEPINFRA_API_KEY", _THREE),
    "featherless_ai": ("https://api.featherless.ai/v1", "FEATHERLESS_AI_API_KEY", _CHAT),
    "fireworks_ai": ("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY", _THREE),
    "friendliai": ("https://api.friendli.ai/serverless/v1", "FRIENDLIAI_API_KEY", _CHAT),
    "github": ("https://models.inference.ai.azure.com", "GITHUB_API_KEY", _CHAT),
    "groq": ("https://api.groq.com/openai/v1", "GROQ_API_KEY", ("chat", "responses")),
    "hyperbolic": ("https://api.hyperbolic.xyz/v1", "HYPERBOLIC_API_KEY", _CHAT),
    "inception": ("https://api.inceptionlabs.ai/v1", "INCEPTION_API_KEY", _CHAT),
    "lambda_ai": ("https://api.lambda.ai/v1", "LAMBDA_API_KEY", _CHAT),
    "meta_llama": ("https://api.llama.com/compat/v1", "LLAMA_API_KEY", _CHAT),
    "mistral": ("https://api.mistral.ai/v1", "MISTRAL_API_KEY", _EMBEDS),
    "moonshot": ("https://api.moonshot.ai/v1", "MOONSHOT_API_KEY", _CHAT),
    "nebius": ("https://api.studio.nebius.ai/v1", "NEBIUS_API_KEY", _CHAT),
    "novita": ("https://api.novita.ai/v3/openai", "NOVITA_API_KEY", _CHAT),
    "nscale": ("https://inference.api.nscale.com/v1", "NSCALE_API_KEY", _CHAT),
    "nvidia_nim": ("https://integrate.api.nvidia.com/v1", "NVIDIA_NIM_API_KEY", _THREE),
    "openai": (_OPENAI, "OPENAI_API_KEY", None),
    "perplexity": ("https://api.perplexity.ai", "PERPLEXITYAI_API_KEY", _CHAT),
    "sambanova": ("https://api.sambanova.ai/v1", "SAMBANOVA_API_KEY", _CHAT),
    "scaleway": ("https://api.scaleway.ai/v1", "SCW_SECRET_KEY", _CHAT),
    "text-completion-openai": (_OPENAI, "OPENAI_API_KEY", ("completions",)),
    "together_ai": ("https://api.together.ai/v1", "TOGETHERAI_API_KEY", _THREE),
    "v0": ("https://api.v0.dev/v1", "V0_API_KEY", _CHAT),
    "vercel_ai_gateway": ("https://ai-gateway.vercel.sh/v1", "VERCEL_AI_GATEWAY_API_KEY", _CHAT),
    "volcengine": ("https://ark.cn-beijing.volces.com/api/v3", "VOLCENGINE_API_KEY", _CHAT),
    "wandb": ("https://api.inference.wandb.ai/v1", "WANDB_API_KEY", _CHAT),
    "xai": ("https://api.x.ai/v1", "XAI_API_KEY", ("chat", "responses")),
    "zai": ("https://api.z.ai/api/paas/v4", "ZAI_API_KEY", _CHAT),
}
"""Providers with OpenAI's own dialect: address, key variable, and the endpoints that are used."""
_OLLAMA = KnownProvider("http://127.0.0.1:11434/v1", serves=_THREE, path="/v1")
_ANTHROPIC = "https://api.anthropic.com/v1"
_GEMINI = "https://generativelanguage.googleapis.com/v1beta/openai"
_QWEN = "https://dashscope.aliyuncs.com/compatible-mode/v1"
KNOWN: Mapping[str, KnownProvider] = {
    **{name: KnownProvider(url, key, serves=calls) for name, (url, key, calls) in _ROWS.items()},
    "anthropic": KnownProvider(_ANTHROPIC, "ANTHROPIC_API_KEY", "anthropic", path="/v1"),
    "azure": KnownProvider(path="/openai/v1"),
    "dashscope": KnownProvider(_QWEN, "DASHSCOPE_API_KEY", "qwen"),
    "gemini": KnownProvider(_GEMINI, "GEMINI_API_KEY", "gemini"),
    "deepseek": KnownProvider("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", "deepseek"),
    "openrouter": KnownProvider("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "openrouter"),
    "ollama": _OLLAMA,
    "ollama_chat": _OLLAMA,
    "llamafile": KnownProvider("http://127.0.0.1:8080/v1"),
    **dict.fromkeys(("hosted_vllm", "vllm"), KnownProvider(dialect="vllm")),
    **dict.fromkeys(
        ("custom_openai", "openai_like", "litellm_proxy", "lm_studio"), KnownProvider()
    ),
}
"""Providers that use OpenAI's protocol (https://docs.litellm.ai/docs/providers)."""
