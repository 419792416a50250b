"""How different providers tell of reasoning and usage: the same answer in several dialects."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

from pydantic import ConfigDict

from prefill_router.errors import ConfigError

Style = Literal[
    "openai", "anthropic", "deepseek", "qwen", "vllm", "sglang", "openrouter", "nemotron"
]
_THOUGHTS = ("let ", "me t", "hink", ". ", "well", ", ", "so ", "it i", "s. ")
_TEXT_FIELD: dict[Style, str] = {
    "deepseek": "reasoning_content",
    "qwen": "reasoning_content",
    "sglang": "reasoning_content",
    "vllm": "reasoning",
    "openrouter": "reasoning",
}
_TELLS_REASONING_TOKENS = frozenset({"openai", "deepseek", "qwen", "openrouter"})
_TELLS_NO_DETAILS = frozenset({"anthropic", "vllm", "sglang", "nemotron"})


@final
@dataclass(frozen=True, kw_only=True)
class Persona:
    """A provider's dialect.

    Attributes:
        style: Whose. `openai` hides its reasoning and counts it, `anthropic` hides it and doesn't,
            `nemotron` writes it into the answer between `<think>` and `</think>`, the others send
            it in a field of its own.
        reasoning: Tokens of made-up reasoning before each answer, unless the request turns it off.
        cached: Tokens of each prompt that were read from a cache, as far as there are so many.
        cost: Dollars that `openrouter` says each answer cost.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    style: Style = "openai"
    reasoning: int = 0
    cached: int = 0
    cost: float = 0.0

    def __post_init__(self) -> None:
        if min(self.reasoning, self.cached, self.cost) < 0:
            raise ConfigError("a persona's reasoning, cached and cost can't be negative")

    @property
    def shows_reasoning(self) -> bool:
        """Whether its reasoning is sent at all."""
        return self.style not in ("openai", "anthropic")

    @property
    def opening(self) -> bytes:
        """What comes before the first event of a stream: OpenRouter keeps connections alive so."""
        return b": OPENROUTER PROCESSING\n\n" if self.style == "openrouter" else b""

    @property
    def joins_usage(self) -> bool:
        """Whether a stream's usage comes with the finish reason, and not in a chunk of its own."""
        return self.style == "deepseek"

    def thoughts(self, tokens: int) -> list[str]:
        """Reasoning of so many tokens."""
        return [_THOUGHTS[i % len(_THOUGHTS)] for i in range(tokens)]

    def reasoning_delta(self, text: str) -> dict[str, Any]:
        """The fields of a chunk, or of a message, that hold reasoning."""
        if self.style == "nemotron":
            return {"content": text}
        delta: dict[str, Any] = {_TEXT_FIELD[self.style]: text}
        if self.style == "openrouter":
            detail = {"type": "reasoning.text", "text": text, "format": "unknown", "index": 0}
            delta["reasoning_details"] = [detail]
        return delta

    def extra(self) -> dict[str, Any]:
        """Further fields beside `model`."""
        return {"provider": "minipool"} if self.style == "openrouter" else {}

    def usage(self, prompt: int, completion: int, reasoning: int) -> dict[str, Any]:
        """The counts of an answer; `completion` includes `reasoning`."""
        cached = min(self.cached, prompt)
        told: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        if self.style not in _TELLS_NO_DETAILS:
            told["prompt_tokens_details"] = {"cached_tokens": cached}
        elif self.style != "anthropic":
            told["prompt_tokens_details"] = {"cached_tokens": cached} if cached else None
        if self.style in _TELLS_REASONING_TOKENS:
            told["completion_tokens_details"] = {"reasoning_tokens": reasoning}
        if self.style == "deepseek":
            told["prompt_cache_hit_tokens"] = cached
            told["prompt_cache_miss_tokens"] = prompt - cached
        if self.style == "openrouter":
            told["cost"] = self.cost
        return told
