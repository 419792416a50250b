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
from prefill_router_gateway.litellm.model_list import ModelList

FOREIGN = frozenset(
    (
        *("azure_ai", "azure_text", "bedrock", "sagemaker", "sagemaker_chat"),
        *("sagemaker_nova", "vertex_ai", "vertex_ai_beta", "cohere", "cohere_chat", "replicate"),
        *("huggingface", "watsonx", "watsonx_text", "databricks", "snowflake", "cloudflare"),
        *("predibase", "oobabooga", "nlp_cloud", "petals", "triton", "clarifai", "ai21", "oci"),
        "anthropic_text",
    )
)
"""Providers whose addresses in LiteLLM's files serve protocols of their own."""
_AZURE = (".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com")
"""The hosts of Azure OpenAI; `/openai/v1` there has OpenAI's protocol."""
_AZURE_PATH = "/openai/v1"


@final
class UnreachableError(ConfigError):
    """The gateway can't call a deployment; the others are imported without it."""


@final
@dataclass(frozen=True, kw_only=True)
class LitellmProxy:
    """LiteLLM's own endpoint, for deployments whose providers have other protocols.

    Attributes:
        base_url: Its address.
        key_env: The environment variable of its key.
    """

    base_url: str
    key_env: str = "LITELLM_API_KEY"


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

    def variable(self, name: str) -> str | None:
        """The value of an environment variable that LiteLLM reads by itself."""
        return self._environment.get(name)

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
        setting = self._environment.get(value.removeprefix(_REFERENCE))
        if setting is None:
            raise UnreachableError(
                f"{self._where}: {name} names an environment variable that isn't set; set it to "
                "import"
            )
        return setting

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
        number = self._decimal(name)
        if number is None:
            return None
        if number < least if least is not None else number <= 0:
            raise self._wrong(name, f"must be {'above 0' if least is None else f'>= {least:g}'}")
        return float(number)

    def whole(self, name: str, *, least: int = 1) -> int | None:
        """Read a whole number, at least `least`.

        Raises:
            ConfigError: It isn't a whole number, or is too small.
        """
        number = self.number(name, least=least)
        if number is not None and number != int(number):
            raise self._wrong(name, "isn't a whole number")
        return None if number is None else int(number)

    def price(self, name: str) -> float | None:
        """Read a price in dollars per token, converted exactly to dollars per million tokens.

        Raises:
            ConfigError: It isn't a number, or is negative.
        """
        dollars = self._decimal(name)
        if dollars is not None and dollars < 0:
            raise self._wrong(name, "is negative")
        return None if dollars is None else float(dollars * _MILLION)

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
                number = Decimal(str(value))
                if number.is_finite():
                    return number
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
    "cache_write_price": "cache_creation_input_token_cost",
    "cache_write_hour_price": "cache_creation_input_token_cost_above_1hr",
}
_BOTH = ("input_cost_per_token", "output_cost_per_token")
_PROXY = "litellm_proxy"
_IDLE = frozenset(("id", "base_model", "db_model", "litellm_provider", "description", "key"))


@final
@dataclass(frozen=True, kw_only=True)
class Deployment:
    """One deployment, read.

    Attributes:
        target: The target; its provider has LiteLLM's name.
        provider: The provider that serves it.
        shared: Whether it has no rate limits of its own, and so may share its provider.
        has_abilities: Whether the file or the list says anything of what it accepts.
        unread: The fields without a counterpart.
        notes: What was assumed.
        weight: Its share of the calls, relative to the others of its name.
        order: Its priority; LiteLLM calls those of a lower order first.
    """

    target: Target
    provider: Provider
    shared: bool
    has_abilities: bool
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


def find_listed(row: Mapping[str, Any], models: ModelList) -> dict[str, Any]:
    """What the list has of the model of an entry, as far as the entry doesn't say it itself."""
    params, info = row.get("litellm_params"), row.get("model_info")
    params, info = (part if isinstance(part, dict) else {} for part in (params, info))
    model, named = params.get("model"), params.get("custom_llm_provider")
    if not isinstance(model, str):
        return {}
    prefix, slash, rest = model.partition("/")
    provider = named or (prefix if slash else provider_of(model))
    if provider is None:
        return {}
    base = info.get("base_model")
    fields = models.find(provider, rest if slash and prefix == provider else model, base)
    own = {**info, **params}
    if all(own.get(cost) is not None for cost in _COSTS.values() if cost in _BOTH):
        fields = {name: value for name, value in fields.items() if name not in _COSTS.values()}
    return {name: value for name, value in fields.items() if own.get(name) is None}


def read_deployment(
    name: str,
    row: Mapping[str, Any],
    *,
    times: TimeLimits,
    environment: Mapping[str, str],
    proxy: LitellmProxy | None = None,
) -> Deployment:
    """Read one deployment.

    Args:
        name: The target's name.
        row: An entry of `model_list`.
        times: The file's general time limits.
        environment: The variables for `os.environ/NAME`.
        proxy: LiteLLM's own endpoint, for providers with other protocols; None for none.

    Raises:
        UnreachableError: It has no endpoint that can be called.
        ConfigError: It contains a key, or has an invalid value.
    """
    where = f"model {name!r}"
    top = ConfigFields({k: v for k, v in row.items() if k != "model_info"}, where, environment)
    top.take("model_name")
    params = ConfigFields(top.take("litellm_params"), where, environment)
    info = ConfigFields(row.get("model_info"), where, environment)
    key = params.key_variable("api_key")
    serving, model, known_provider, notes = _endpoint(params, where)
    is_behind = serving in FOREIGN and proxy is not None
    if is_behind:
        notes = [f"{serving} is reached through LiteLLM's own endpoint"]
        serving, model, known_provider = _PROXY, name, KNOWN[_PROXY]
    base_url, key_env = _address(
        params, serving, known_provider, where, proxy if is_behind else None
    )
    prices, has_price = _read_prices(params, info)
    target = _target(name, model, known_provider, params, info, prices)
    limits, shared = _limits(top, params, times)
    weight, order = params.number("weight"), params.whole("order", least=0)
    provider = Provider(
        name=serving,
        base_url=base_url,
        dialect=known_provider.dialect,
        api_key_env=key[1] if key[0] and not is_behind else key_env,
        **limits,
    )
    return Deployment(
        target=Target(**target, provider=serving),
        provider=provider,
        shared=shared,
        has_abilities=any(info.take(flag) is not None for flag in _ABILITIES),
        weight=1.0 if weight is None else weight,
        order=order or 0,
        unread=() if is_behind else _unread_fields(top, params, info),
        notes=(*notes, *_list_gaps(target, one_price=has_price)),
    )


def _read_prices(params: ConfigFields, info: ConfigFields) -> tuple[dict[str, float | None], bool]:
    """The prices, none of which count unless both of tokens are given; and whether any of these is.

    Those of litellm_params take precedence over model_info, as in LiteLLM.
    """
    prices = {
        field: _either(params.price(cost), info.price(cost)) for field, cost in _COSTS.items()
    }
    pair = (prices["input_price"], prices["output_price"])
    return prices if None not in pair else dict.fromkeys(prices), pair != (None, None)


def _unread_fields(top: ConfigFields, params: ConfigFields, info: ConfigFields) -> tuple[str, ...]:
    """The fields that nothing here reads. Behind LiteLLM's own endpoint, LiteLLM reads them."""
    return (
        *top.unread,
        *(f"litellm_params.{field}" for field in params.unread),
        *(f"model_info.{field}" for field in info.unread if field not in _IDLE),
    )


def _endpoint(params: ConfigFields, where: str) -> tuple[str, str, KnownProvider, list[str]]:
    """The provider's name, the model's name, the known provider, and what was assumed."""
    model, named = params.text("model"), params.text("custom_llm_provider")
    if model is None:
        raise UnreachableError(f"{where} has no litellm_params.model")
    prefix, slash, rest = model.partition("/")
    if named is not None:
        model = rest if slash and prefix == named else model
    elif slash:
        named, model = prefix, rest
    else:
        named = provider_of(model)
    if named is None:
        raise UnreachableError(f"{where}: its model has no provider; write it as provider/name")
    if not model:
        raise UnreachableError(f"{where}: its model is only a provider; write it as provider/name")
    if named in KNOWN or named in FOREIGN:
        return named, model, KNOWN.get(named, KnownProvider()), []
    return named, model, KnownProvider(), [f"{named} is assumed to use OpenAI's protocol"]


def _address(
    params: ConfigFields,
    serving: str,
    known_provider: KnownProvider,
    where: str,
    proxy: LitellmProxy | None,
) -> tuple[str, str | None]:
    """The endpoint's URL, and the variable of its key where the file names none."""
    if proxy is not None:
        return proxy.base_url, proxy.key_env
    if serving in FOREIGN:
        raise UnreachableError(
            f"{where}: {serving} has a protocol of its own; reach it through LiteLLM's own "
            "endpoint, with --through URL"
        )
    own, older = params.text("api_base"), params.text("base_url")
    url = own or older
    if url is None and serving == "azure":
        url = params.variable("AZURE_API_BASE")
    if url is None:
        if known_provider.base_url is None:
            raise UnreachableError(f"{where}: {serving} has no fixed address; give an api_base")
        return known_provider.base_url, known_provider.key_env
    url = url.rstrip("/")
    try:
        parts = urlsplit(url)
        if serving == "azure" and (parts.hostname or "").endswith(_AZURE):
            return f"{parts.scheme}://{parts.netloc}{_AZURE_PATH}", "AZURE_API_KEY"
        bare = not parts.path
    except ValueError:
        bare = False  # Provider reports what is wrong with it
    return url + known_provider.path if bare else url, None


def _target(
    name: str,
    model: str,
    known_provider: KnownProvider,
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
        "serves": MODES[mode] or known_provider.serves,
        "request": _request(params, info),
    }


def _request(params: ConfigFields, info: ConfigFields) -> RequestOptions:
    """The request options; the output limit of a model has two names."""
    most = (info.whole("max_output_tokens"), info.whole("max_tokens"))
    own_limit = params.whole("max_tokens") or params.whole("max_completion_tokens")
    limit = own_limit or next((tokens for tokens in most if tokens is not None), None)
    further = params.take("extra_body")
    options: dict[str, Any] = {
        "max_tokens": limit,
        "temperature": params.number("temperature", least=0),
        "top_p": params.number("top_p", least=0),
        "top_k": params.whole("top_k", least=-1),
        "seed": params.whole("seed", least=-(2**63)),
        "reasoning_effort": params.text("reasoning_effort"),
        "extra_body": further if isinstance(further, dict) else None,
    }
    return RequestOptions(**{k: v for k, v in options.items() if v is not None})


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
    present = {name: value for name, value in limits.items() if value is not None}
    return present, all(value is None for value in own.values())


def _either(first: float | None, second: float | None) -> float | None:
    return second if first is None else first


def _list_gaps(target: Mapping[str, Any], *, one_price: bool) -> list[str]:
    """Notes on what neither the file nor the list of models has."""
    notes = []
    if target["input_price"] is None:
        lacks = "only one of two prices, which is left out" if one_price else "no price"
        notes.append(
            f"{lacks}; write model_info.base_model if the list of models has it under another "
            "name, or see prefill-router prices"
        )
    if not target["accepts"] and target["serves"] != ("embeddings",):
        notes.append("no supported inputs; write accepts, or it gets only texts")
    return notes
