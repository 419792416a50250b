"""Reads one deployment of LiteLLM's `model_list` as a target and its provider.

The fields of each part of the file are checked when they are read; unread ones are listed.

"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, final
from urllib.parse import urlsplit

from prefill_router.errors import ConfigError
from prefill_router.targets import (
    KNOWN,
    Ability,
    Endpoint,
    KnownProvider,
    Provider,
    RequestOptions,
    Target,
)

FOREIGN = frozenset(
    (
        *("azure", "azure_ai", "azure_text", "bedrock", "sagemaker", "sagemaker_chat"),
        *("sagemaker_nova", "vertex_ai", "vertex_ai_beta", "cohere", "cohere_chat", "replicate"),
        *("huggingface", "watsonx", "watsonx_text", "databricks", "snowflake", "cloudflare"),
        *("predibase", "oobabooga", "nlp_cloud", "petals", "triton", "clarifai", "ai21", "oci"),
        "anthropic_text",
    )
)
"""Providers whose addresses in LiteLLM's files serve protocols of their own."""

_FAMILIES = (
    ("text-completion-openai", ("gpt-3.5-turbo-instruct", "davinci-002", "babbage-002")),
    ("openai", ("gpt-", "chatgpt-", "o1", "o3", "o4", "ft:gpt-", "text-embedding-")),
    ("anthropic", ("claude-",)),
    ("vertex_ai", ("gemini-",)),
)


def provider_of(model: str) -> str | None:
    """The provider of a model name without one; None where the name doesn't imply it."""
    for provider, beginnings in _FAMILIES:
        if model.startswith(beginnings):
            return provider
    return None


_REFERENCE = "os.environ/"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NO_KEYS = frozenset(("", "none", "null", "empty", "dummy", "fake-key"))
_MILLION = 1_000_000


@final
class ConfigFields:
    """The fields of one part of the file. Errors quote no values, which may be keys.

    Args:
        value: The part; None counts as empty.
        where: Its name in errors.
        environment: The variables for `os.environ/NAME`; keys are never looked up.

    Raises:
        ConfigError: It isn't a mapping.
    """

    def __init__(self, value: object, where: str, environment: Mapping[str, str]) -> None:
        if value is not None and not isinstance(value, dict):
            raise ConfigError(f"{where} isn't a mapping; write names with values")
        self._value: dict[str, Any] = {str(name): v for name, v in (value or {}).items()}
        self._where, self._environment = where, environment
        self._read: set[str] = set()

    @property
    def unread(self) -> list[str]:
        """The names of the fields that have a value and weren't read."""
        return [n for n, v in self._value.items() if n not in self._read and v is not None]

    def take(self, name: str) -> Any:
        """Read a field; None where it is missing.

        Raises:
            ConfigError: It names an environment variable that isn't set.
        """
        value = self._raw(name)
        if not isinstance(value, str) or not value.startswith(_REFERENCE):
            return value
        found = self._environment.get(value.removeprefix(_REFERENCE))
        if found is None:
            raise self._wrong(
                name, "names an environment variable that isn't set; set it to import"
            )
        return found

    def text(self, name: str) -> str | None:
        """Read a text.

        Raises:
            ConfigError: It isn't a text, or is empty.
        """
        value = self.take(name)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise self._wrong(name, "isn't a text")
        return value

    def flag(self, name: str) -> bool | None:
        """Read a boolean.

        Raises:
            ConfigError: It isn't a boolean.
        """
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(name, "is neither true nor false")
        return value

    def number(self, name: str, *, least: float | None = None) -> float | None:
        """Read a number: above 0, or at least `least`.

        Raises:
            ConfigError: It isn't a number, or is too small.
        """
        found = self._decimal(name)
        if found is None:
            return None
        if found < least if least is not None else found <= 0:
            raise self._wrong(name, f"must be {'above 0' if least is None else f'>= {least:g}'}")
        return float(found)

    def whole(self, name: str, *, least: int = 1) -> int | None:
        """Read a whole number, at least `least`.

        Raises:
            ConfigError: It isn't a whole number, or is too small.
        """
        found = self.number(name, least=least)
        if found is not None and found != int(found):
            raise self._wrong(name, "isn't a whole number")
        return None if found is None else int(found)

    def price(self, name: str) -> float | None:
        """Read a price in dollars per token, converted exactly to dollars per million tokens.

        Raises:
            ConfigError: It isn't a number, or is negative.
        """
        found = self._decimal(name)
        if found is not None and found < 0:
            raise self._wrong(name, "is negative")
        return None if found is None else float(found * _MILLION)

    def key_variable(self, name: str) -> tuple[bool, str | None]:
        """Whether a key is given, and its environment variable; None for a placeholder.

        Raises:
            ConfigError: The file contains the key itself.
        """
        value = self._raw(name)
        if value is None:
            return False, None
        if isinstance(value, str):
            if value.lower() in _NO_KEYS:
                return True, None
            variable = value.removeprefix(_REFERENCE)
            if variable != value and _VARIABLE.fullmatch(variable):
                return True, variable
        raise self._wrong(
            name, "contains a key; put it in an environment variable and write os.environ/NAME here"
        )

    def _raw(self, name: str) -> Any:
        self._read.add(name)
        return self._value.get(name)

    def _decimal(self, name: str) -> Decimal | None:
        value = self.take(name)
        if value is None:
            return None
        try:  # YAML reads 3e-06, which has no decimal point, as a text
            if isinstance(value, int | float | str) and not isinstance(value, bool):
                found = Decimal(str(value))
                if found.is_finite():
                    return found
        except InvalidOperation:
            pass
        raise self._wrong(name, "isn't a number")

    def _wrong(self, name: str, what: str) -> ConfigError:
        return ConfigError(f"{self._where}: {name} {what}")


_ABILITIES: Mapping[str, Ability] = {
    "supports_vision": "images",
    "supports_function_calling": "tools",
    "supports_response_schema": "json_schema",
    "supports_audio_input": "audio",
    "supports_pdf_input": "files",
}
MODES: Mapping[str, tuple[Endpoint, ...] | None] = {
    "chat": None,
    "completion": ("completions",),
    "embedding": ("embeddings",),
    "responses": ("responses",),
}
_COSTS = {
    "input_price": "input_cost_per_token",
    "output_price": "output_cost_per_token",
    "cached_input_price": "cache_read_input_token_cost",
    "reasoning_price": "output_cost_per_reasoning_token",
}
_IDLE = frozenset(("id", "base_model", "db_model", "litellm_provider", "description", "key"))


@final
@dataclass(frozen=True, kw_only=True)
class Deployment:
    """One deployment, read.

    Attributes:
        target: The target; its provider has LiteLLM's name.
        provider: The provider that serves it.
        shared: Whether it has no rate limits of its own, and so may share its provider.
        unread: The fields without a counterpart.
        notes: What was assumed.
        weight: Its share of the calls, relative to the others of its name.
        order: Its priority; LiteLLM calls those of a lower order first.
    """

    target: Target
    provider: Provider
    shared: bool
    unread: tuple[str, ...]
    notes: tuple[str, ...]
    weight: float
    order: int


@final
@dataclass(frozen=True, kw_only=True)
class TimeLimits:
    """The time limits of deployments that set none, in seconds; None for the pool's defaults."""

    answer: float | None = None
    first_token: float | None = None


def read_deployment(
    name: str, row: Mapping[str, Any], *, times: TimeLimits, environment: Mapping[str, str]
) -> Deployment:
    """Read one deployment.

    Args:
        name: The target's name.
        row: An entry of `model_list`.
        times: The file's general time limits.
        environment: The variables for `os.environ/NAME`.

    Raises:
        ConfigError: It contains a key, has no known endpoint, or has an invalid value.
    """
    where = f"model {name!r}"
    top = ConfigFields({k: v for k, v in row.items() if k != "model_info"}, where, environment)
    top.take("model_name")
    params = ConfigFields(top.take("litellm_params"), where, environment)
    info = ConfigFields(row.get("model_info"), where, environment)
    key = params.key_variable("api_key")
    serving, model, known, noted = _endpoint(params, where)
    base_url, assumed = _address(params, serving, known, where)
    prices = {  # litellm_params take precedence over model_info, as in LiteLLM
        field: _either(params.price(cost), info.price(cost)) for field, cost in _COSTS.items()
    }
    pair = (prices["input_price"], prices["output_price"])
    priced = prices if None not in pair else dict.fromkeys(prices)
    target = _target(name, model, known, params, info, priced)
    limits, shared = _limits(top, params, times)
    weight, order = params.number("weight"), params.whole("order", least=0)
    provider = Provider(
        name=serving,
        base_url=base_url,
        dialect=known.dialect,
        api_key_env=key[1] if key[0] or not assumed else known.key_env,
        **limits,
    )
    return Deployment(
        target=Target(**target, provider=serving),
        provider=provider,
        shared=shared,
        weight=1.0 if weight is None else weight,
        order=order or 0,
        unread=(
            *top.unread,
            *(f"litellm_params.{field}" for field in params.unread),
            *(f"model_info.{field}" for field in info.unread if field not in _IDLE),
        ),
        notes=(*noted, *_lacking(target, one_price=pair != (None, None))),
    )


def _endpoint(params: ConfigFields, where: str) -> tuple[str, str, KnownProvider, list[str]]:
    """The provider's name, the model's name, the known provider, and what was assumed."""
    model, named = params.text("model"), params.text("custom_llm_provider")
    if model is None:
        raise ConfigError(f"{where} has no litellm_params.model")
    prefix, slash, rest = model.partition("/")
    if named is not None:
        model = rest if slash and prefix == named else model
    elif slash:
        named, model = prefix, rest
    else:
        named = provider_of(model)
    if named is None:
        raise ConfigError(f"{where}: its model has no provider; write it as provider/name")
    if not model:
        raise ConfigError(f"{where}: its model is only a provider; write it as provider/name")
    if named in FOREIGN:
        raise ConfigError(
            f"{where}: {named} has a protocol of its own; if it also has an OpenAI-compatible "
            "endpoint, give that as api_base, and the model as openai/name"
        )
    if named in KNOWN:
        return named, model, KNOWN[named], []
    return named, model, KnownProvider(), [f"{named} is assumed to use OpenAI's protocol"]


def _address(
    params: ConfigFields, serving: str, known: KnownProvider, where: str
) -> tuple[str, bool]:
    """The endpoint's URL, and whether it is the provider's known one."""
    own, older = params.text("api_base"), params.text("base_url")
    given = own or older
    if given is None:
        if known.base_url is None:
            raise ConfigError(f"{where}: {serving} has no fixed address; give an api_base")
        return known.base_url, True
    given = given.rstrip("/")
    try:
        bare = not urlsplit(given).path
    except ValueError:
        bare = False  # Provider reports what is wrong with it
    return given + known.path if bare else given, False


def _target(
    name: str,
    model: str,
    known: KnownProvider,
    params: ConfigFields,
    info: ConfigFields,
    prices: Mapping[str, float | None],
) -> dict[str, Any]:
    mode = info.text("mode") or "chat"
    flags = {ability: info.flag(flag) for flag, ability in _ABILITIES.items()}
    return {
        "name": name,
        "model": None if model == name else model,
        **prices,
        "accepts": tuple(ability for ability, has in flags.items() if has),
        "context_tokens": info.whole("max_input_tokens"),
        "serves": MODES[mode] or known.serves,
        "request": _request(params, info),
    }


def _request(params: ConfigFields, info: ConfigFields) -> RequestOptions:
    """The request options; the output limit of a model has two names."""
    most = (info.whole("max_output_tokens"), info.whole("max_tokens"))
    asked = params.whole("max_tokens") or params.whole("max_completion_tokens")
    limit = asked or next((tokens for tokens in most if tokens is not None), None)
    further = params.take("extra_body")
    given: dict[str, Any] = {
        "max_tokens": limit,
        "temperature": params.number("temperature", least=0),
        "top_p": params.number("top_p", least=0),
        "top_k": params.whole("top_k", least=-1),
        "seed": params.whole("seed", least=-(2**63)),
        "reasoning_effort": params.text("reasoning_effort"),
        "extra_body": further if isinstance(further, dict) else None,
    }
    return RequestOptions(**{k: v for k, v in given.items() if v is not None})


def _limits(
    top: ConfigFields, params: ConfigFields, times: TimeLimits
) -> tuple[dict[str, Any], bool]:
    """A provider's limits, and whether the deployment has no rate limits of its own."""
    own = {
        "concurrency": params.whole("max_parallel_requests"),
        "requests_per_minute": _either(params.number("rpm"), top.number("rpm")),
        "tokens_per_minute": _either(params.number("tpm"), top.number("tpm")),
    }
    limits = {
        **own,
        "answer_seconds": _either(params.number("timeout"), times.answer),
        "first_token_seconds": _either(params.number("stream_timeout"), times.first_token),
    }
    known = {name: value for name, value in limits.items() if value is not None}
    return known, all(value is None for value in own.values())


def _either(first: float | None, second: float | None) -> float | None:
    return second if first is None else first


def _lacking(target: Mapping[str, Any], *, one_price: bool) -> list[str]:
    """Notes on what the file lacks because LiteLLM has it in lists of its own."""
    found = []
    if target["input_price"] is None:
        lacks = "only one of two prices, which is left out" if one_price else "no price"
        found.append(f"{lacks}; see prefill-router prices")
    if not target["accepts"] and target["serves"] != ("embeddings",):
        found.append("no supported inputs; write accepts, or it gets only texts")
    return found
