"""Providers: the endpoints that serve targets, with their dialects and rate limits.

Also the names of what a target may support besides plain text.

The dialects of OpenAI-compatible endpoints, one row each, and what model families need.

Sources, as of November 2026: OpenAI's API reference; Anthropic's pages on OpenAI SDK compatibility
and on adaptive thinking; vLLM's and SGLang's pages on reasoning outputs and their chat completion
protocols; OpenRouter's pages on reasoning tokens and usage accounting; DeepSeek's page on thinking
mode; Alibaba Model Studio's page on deep thinking; NVIDIA NIM's page on reasoning models; Google's
page on OpenAI compatibility; vLLM's and SGLang's on thinking budgets.

Anthropic's OpenAI-compatible endpoint ignores `reasoning_effort` and takes `thinking`. From
Claude 4.6 on it is adaptive, with an effort beside it; earlier models take a budget of tokens
instead, which newer ones refuse. The reasoning itself never comes back there.

The settings that the makers of open model families recommend are found by the model's name.
Sampling parameters are from the model cards: Qwen3 and Qwen3.5 (general tasks), Nemotron 3 Nano and
Super, and the earlier reasoning Nemotrons (also NVIDIA NIM's page on reasoning models). The system
prompts that switch the reasoning of the earlier Nemotrons are from that page.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, final, get_args
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from prefill_router.errors import ConfigError

if TYPE_CHECKING:
    from prefill_router.targets.target import RequestOptions


Endpoint = Literal["chat", "completions", "responses", "embeddings", "messages"]
"""The API endpoints that a target may serve: OpenAI's, and Anthropic's `messages`."""
ENDPOINTS: tuple[Endpoint, ...] = get_args(Endpoint)

Dialect = Literal[
    "openai", "anthropic", "gemini", "vllm", "sglang", "openrouter", "deepseek", "qwen", "nemotron"
]
"""How an OpenAI-compatible endpoint differs from OpenAI's own."""
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)

Fields = dict[str, Any]


@final
@dataclass(frozen=True, kw_only=True)
class DialectTraits:
    """One dialect.

    Attributes:
        serves: The API endpoints that it serves, unless a target says otherwise.
        max_tokens: The name of the field that limits output tokens.
        effort: Request fields for a reasoning effort; None where efforts aren't supported.
        thinking: Request fields that switch reasoning on or off; None where there is no switch.
        budget: Request fields for the most tokens of reasoning; None where there is no such limit.
        reasoning: Request fields for the reasoning that options ask for, by the model's name; it
            replaces `effort`, `thinking` and `budget`.
        efforts_in: The endpoints in which a target's effort can be said.
        refused_by_thinking: Fields that a model refuses while it thinks.
        system_switch: The system prompt that switches a model's reasoning on or off, where there
            are no fields for it. None where the model has fields.
        top_k: Whether it accepts `top_k`.
        seed: Whether it accepts `seed`; otherwise no seed is sent.
        recommends: Whether the model's recommended sampling is sent where a target's options leave
            it open. Other servers apply such defaults themselves (`generation_config.json`).
        opens_thinking: Whether the chat template may have written the tag that opens reasoning, so
            that only the closing tag comes back.
        always: Fields that every request gets.
    """

    serves: tuple[Endpoint, ...]
    max_tokens: str = "max_tokens"
    effort: Callable[[str], Fields] | None = None
    thinking: Callable[[bool], Fields] | None = None
    budget: Callable[[int], Fields] | None = None
    reasoning: Callable[[str, "RequestOptions"], Fields] | None = None
    efforts_in: tuple[Endpoint, ...] = ("chat",)
    refused_by_thinking: tuple[str, ...] = ()
    system_switch: Callable[[str, bool], str | None] | None = None
    top_k: bool = False
    seed: bool = True
    recommends: bool = False
    opens_thinking: bool = True
    always: Mapping[str, Any] = field(default_factory=dict)


_CLAUDE_VERSION = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_ADAPTIVE_FROM = (4, 6)
_SHARES = {"minimal": 0.1, "low": 0.2, "medium": 0.5, "high": 0.8, "xhigh": 0.95, "max": 0.95}
"""Thinking budgets as shares of max_tokens, by effort, as OpenRouter sets them."""
_LEAST_BUDGET = 1024


def claude_reasoning(model: str, options: "RequestOptions") -> Fields:
    """The request fields for the reasoning that the options of a Claude target ask for.

    Raises:
        ConfigError: The effort is unknown, max_tokens is too small for a budget, or the model
            takes none.
    """
    if options.enable_thinking is False:
        return {"thinking": {"type": "disabled"}}
    if not options.has_reasoning:
        return {}
    if _claude_version(model) < _ADAPTIVE_FROM:
        return {"thinking": {"type": "enabled", "budget_tokens": _claude_budget(model, options)}}
    if options.thinking_budget is not None:
        raise ConfigError(
            f"a thinking budget is set for {model!r}; Claude 4.6 and later take an effort such as "
            "low instead"
        )
    effort = options.reasoning_effort
    depth = {} if effort is None else {"output_config": {"effort": effort}}
    return {"thinking": {"type": "adaptive"}, **depth}


def _claude_budget(model: str, options: "RequestOptions") -> int:
    if options.max_tokens <= _LEAST_BUDGET:
        raise ConfigError(
            f"max_tokens is {options.max_tokens} for {model!r}; reasoning needs more than "
            f"{_LEAST_BUDGET}"
        )
    effort = options.reasoning_effort or "high"
    if effort not in _SHARES:
        raise ConfigError(
            f"the reasoning_effort of {model!r} is {effort!r}; it must be one of "
            f"{', '.join(_SHARES)}"
        )
    budget = options.thinking_budget or int(options.max_tokens * _SHARES[effort])
    return max(_LEAST_BUDGET, min(budget, options.max_tokens - 1))


def _claude_version(model: str) -> tuple[int, int]:
    """The version, such as (4, 6); a name without a version counts as a new model."""
    match = _CLAUDE_VERSION.search(model.lower())
    return (int(match[1]), int(match[2] or 0)) if match else (99, 0)


_QWEN_3_5 = re.compile(r"qwen-?3\.[5-9]")
_QWEN_3 = re.compile(r"qwen-?3")
_NEMOTRON_3_NANO = re.compile(r"nemotron-3-nano|nemotron-nano.*v3")
_NEMOTRON_3 = re.compile(r"nemotron-3-|nemotron-(super|ultra).*v3")
_NEMOTRON = re.compile(r"nemotron")
_SLASHED = re.compile(r"nemotron.*(v1[._]5|nano-9b-v2|nano-12b-v2)")

_SAMPLING: tuple[tuple[re.Pattern[str], dict[str, Any], dict[str, Any]], ...] = (
    (
        _QWEN_3_5,
        {"temperature": 1.0, "top_p": 0.95, "top_k": 20, "presence_penalty": 1.5},
        {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "presence_penalty": 1.5},
    ),
    (
        _QWEN_3,
        {"temperature": 0.6, "top_p": 0.95, "top_k": 20},
        {"temperature": 0.7, "top_p": 0.8, "top_k": 20},
    ),
    (_NEMOTRON_3_NANO, {"temperature": 1.0, "top_p": 1.0}, {"temperature": 0.0}),
    (_NEMOTRON_3, {"temperature": 1.0, "top_p": 0.95}, {"temperature": 1.0, "top_p": 0.95}),
    (_NEMOTRON, {"temperature": 0.6, "top_p": 0.95}, {"temperature": 0.0}),
)


def recommended_sampling(model: str, *, thinking: bool) -> Fields:
    """Sampling parameters that a model's maker recommends; empty for an unknown model.

    Args:
        model: The endpoint's name for the model.
        thinking: Whether the model reasons.
    """
    for pattern, with_it, without in _SAMPLING:
        if pattern.search(model.lower()):
            return dict(with_it if thinking else without)
    return {}


def system_switch(model: str, on: bool) -> str | None:
    """The system prompt that switches reasoning; None where the chat template has a parameter."""
    name = model.lower()
    if not _NEMOTRON.search(name) or _NEMOTRON_3.search(name) or _NEMOTRON_3_NANO.search(name):
        return None
    if _SLASHED.search(name):
        return "/think" if on else "/no_think"
    return f"detailed thinking {'on' if on else 'off'}" if "llama" in name else None


def _plain_effort(effort: str) -> Fields:
    return {"reasoning_effort": effort}


def _template_switch(on: bool) -> Fields:
    """Chat templates use one of two names for the switch, and ignore the other."""
    return {"chat_template_kwargs": {"enable_thinking": on, "thinking": on}}


_VLLM = DialectTraits(
    serves=ENDPOINTS,
    effort=_plain_effort,
    thinking=_template_switch,
    budget=lambda tokens: {"thinking_token_budget": tokens},
    top_k=True,
)
TRAITS: dict[Dialect, DialectTraits] = {
    "openai": DialectTraits(
        serves=("chat", "completions", "responses", "embeddings"),
        max_tokens="max_completion_tokens",
        effort=_plain_effort,
        efforts_in=("chat", "responses"),
        opens_thinking=False,
    ),
    "anthropic": DialectTraits(
        serves=("chat", "messages"),
        reasoning=claude_reasoning,
        efforts_in=("chat", "messages"),
        refused_by_thinking=("temperature", "top_p", "top_k"),
        seed=False,
        opens_thinking=False,
    ),
    "gemini": DialectTraits(
        serves=("chat", "embeddings"),
        effort=_plain_effort,
        budget=lambda tokens: {
            "extra_body": {"google": {"thinking_config": {"thinking_budget": tokens}}}
        },
        opens_thinking=False,
    ),
    "vllm": _VLLM,
    "sglang": replace(
        _VLLM, budget=lambda tokens: {"chat_template_kwargs": {"thinking_budget": tokens}}
    ),
    "openrouter": DialectTraits(
        serves=ENDPOINTS,
        effort=lambda effort: {"reasoning": {"effort": effort}},
        thinking=lambda on: {"reasoning": {"enabled": on}},
        budget=lambda tokens: {"reasoning": {"max_tokens": tokens}},
        efforts_in=("chat", "responses"),
        top_k=True,
        always={"usage": {"include": True}},
    ),
    "deepseek": DialectTraits(
        serves=("chat", "completions"),
        effort=_plain_effort,
        thinking=lambda on: {"thinking": {"type": "enabled" if on else "disabled"}},
        seed=False,
    ),
    "qwen": DialectTraits(
        serves=("chat", "completions", "embeddings"),
        thinking=lambda on: {"enable_thinking": on},
        budget=lambda tokens: {"thinking_budget": tokens},
        top_k=True,
        recommends=True,
    ),
    "nemotron": DialectTraits(
        serves=("chat", "completions"),
        thinking=lambda on: {"chat_template_kwargs": {"enable_thinking": on}},
        system_switch=system_switch,
        top_k=True,
        recommends=True,
    ),
}
"""Every dialect; a new one is a row here and its name in `Dialect`."""


Ability = Literal["tools", "images", "audio", "files", "json_schema", "thinking"]
"""What a target may support besides plain text.

- `tools`: calling functions; `json_schema`: answers that follow a schema;
- `images`, `audio`, `files`: content parts of these kinds;
- `thinking`: fields that say how much to think, in its dialect; no request needs it.
"""
ABILITIES: tuple[Ability, ...] = get_args(Ability)

_SECRET = re.compile("key|token|secret|sig|pass|auth|code", re.IGNORECASE)
_WORD_FOR_PORT = re.compile(r"(//|^)[^/]*:[^/\d]")  # a key may stand where the port should
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@final
@dataclass(frozen=True, kw_only=True)
class Provider:
    """An endpoint that serves targets, with limits that hold for all of them together.

    Attributes:
        name: Its name, unique in the pool.
        base_url: The base URL of its OpenAI-compatible API.
        dialect: Its dialect, by name; see `DIALECTS`.
        api_key_env: The name of the environment variable that holds its key; never the key.
        concurrency: The most calls at a time.
        requests_per_minute: The most calls that begin in a minute; None for no limit.
        tokens_per_minute: The most tokens in a minute, input plus output; None for no limit.
        connect_seconds: Timeout for connecting.
        first_token_seconds: Timeout for the first token of an answer.
        answer_seconds: Timeout for a whole answer.
        silence_seconds: Timeout between two chunks of a stream; only the gateway applies it.
    """

    name: str
    base_url: str
    dialect: Dialect = "openai"
    api_key_env: str | None = None
    concurrency: int = 16
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    connect_seconds: float = 10.0
    first_token_seconds: float = 600.0
    answer_seconds: float = 3600.0
    silence_seconds: float = 120.0

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ConfigError("a provider has an empty name; give it one")
        check_variable(self.api_key_env, f"provider {self.name!r}")
        check_address(self.base_url, f"provider {self.name!r}")
        if self.concurrency < 1:
            raise ConfigError(
                f"provider {self.name!r} has concurrency {self.concurrency}; at least 1 is needed"
            )
        for what in ("requests_per_minute", "tokens_per_minute"):
            self._check_positive(what, getattr(self, what))
        for limit in ("connect", "first_token", "answer", "silence"):
            self._check_positive(f"{limit}_seconds", getattr(self, f"{limit}_seconds"))

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values in the query string of its base_url whose names suggest that they are keys."""
        return tuple(v for n, v in parse_qsl(urlsplit(self.base_url).query) if _SECRET.search(n))

    def _check_positive(self, what: str, value: float | None) -> None:
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ConfigError(
                f"provider {self.name!r} has {what} {value}; it must be a number above 0"
            )


def check_variable(name: str | None, whose: str) -> None:
    """Check that an api_key_env is a valid name of an environment variable.

    Raises:
        ConfigError: It isn't; the value isn't quoted, since it may be the key itself.
    """
    if name is not None and not _VARIABLE.fullmatch(name):
        raise ConfigError(
            f"{whose} has an api_key_env that can't be the name of a variable; it must be the name "
            "of the environment variable that holds the key, such as LAB_KEY, never the key"
        )


def check_address(base_url: str, whose: str) -> None:
    """Check that a base_url is a valid URL without a user name or password.

    Raises:
        ConfigError: It isn't. It is quoted only where it can't contain a key.
    """
    try:
        parts = urlsplit(base_url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    else:
        if parts.username or parts.password:
            raise ConfigError(
                f"{whose} has a password in its base_url; take it out, and name the variable of "
                "its key as api_key_env"
            )
    if not good:
        address = (
            "that isn't quoted here, since it may contain a key"
            if set("@?#") & set(base_url) or _WORD_FOR_PORT.search(base_url)
            else repr(base_url)
        )
        raise ConfigError(
            f"{whose} has the base_url {address}; it must begin with http:// or https:// and a "
            "host, such as http://127.0.0.1:8000/v1"
        )


def public_address(base_url: str) -> str:
    """A base_url that is safe to show and save: without its query, which may contain a key."""
    parts = urlsplit(base_url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
