"""One deployment of LiteLLM's `model_list`, as a target and the provider that serves it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final
from urllib.parse import urlsplit

from prefill_router.errors import ConfigError
from prefill_router.gateway.litellm.fields import Fields
from prefill_router.gateway.litellm.known import FOREIGN, KNOWN, Known, provider_of
from prefill_router.targets import Ability, Endpoint, Provider, RequestOptions, Target

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
        target: The target; its provider is called as LiteLLM calls it.
        provider: Who serves it.
        shared: Whether its limits are the provider's, not its own.
        unread: Fields of the file without a counterpart.
        notes: What was assumed.
    """

    target: Target
    provider: Provider
    shared: bool
    unread: tuple[str, ...]
    notes: tuple[str, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Times:
    """The time limits of deployments that have none, seconds; None for those of the pool."""

    answer: float | None = None
    first_token: float | None = None


def read_deployment(
    name: str, row: Mapping[str, Any], *, times: Times, environment: Mapping[str, str]
) -> Deployment:
    """Read one deployment.

    Args:
        name: The target's.
        row: An entry of `model_list`.
        times: What the whole file says of time limits.
        environment: What `os.environ/NAME` stands for.

    Raises:
        ConfigError: It has a key in it, no known endpoint, or a value that can't be used.
    """
    where = f"model {name!r}"
    top = Fields({k: v for k, v in row.items() if k != "model_info"}, where, environment)
    top.take("model_name")
    params = Fields(top.take("litellm_params"), where, environment)
    info = Fields(row.get("model_info"), where, environment)
    key = params.key_variable("api_key")
    serving, model, known, noted = _endpoint(params, where)
    base_url, assumed = _address(params, serving, known, where)
    prices = {  # where both say, LiteLLM takes what stands with the model
        field: _either(params.price(cost), info.price(cost)) for field, cost in _COSTS.items()
    }
    pair = (prices["input_price"], prices["output_price"])
    priced = prices if None not in pair else dict.fromkeys(prices)
    target = _target(name, model, known, params, info, priced)
    limits, shared = _limits(top, params, times)
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
        unread=(
            *top.unread,
            *(f"litellm_params.{field}" for field in params.unread),
            *(f"model_info.{field}" for field in info.unread if field not in _IDLE),
        ),
        notes=(*noted, *_lacking(target, one_price=pair != (None, None))),
    )


def _endpoint(params: Fields, where: str) -> tuple[str, str, Known, list[str]]:
    """The provider's name, the model's, what is known of it, and what was assumed."""
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
        raise ConfigError(f"{where}: its model names no provider; write it as provider/name")
    if not model:
        raise ConfigError(f"{where}: its model names a provider alone; write it as provider/name")
    if named in FOREIGN:
        raise ConfigError(
            f"{where}: {named} speaks a protocol of its own; where it has an OpenAI-compatible "
            "address too, give that as api_base, and the model as openai/name"
        )
    if named in KNOWN:
        return named, model, KNOWN[named], []
    return named, model, Known(), [f"{named} is taken to speak OpenAI's protocol"]


def _address(params: Fields, serving: str, known: Known, where: str) -> tuple[str, bool]:
    """The endpoint, and whether it is the one that is known for the provider."""
    own, older = params.text("api_base"), params.text("base_url")
    given = own or older
    if given is None:
        if known.base_url is None:
            raise ConfigError(f"{where}: {serving} has no address of its own; give it an api_base")
        return known.base_url, True
    given = given.rstrip("/")
    try:
        bare = not urlsplit(given).path
    except ValueError:
        bare = False  # what is wrong with it the provider says
    return given + known.path if bare else given, False


def _target(
    name: str,
    model: str,
    known: Known,
    params: Fields,
    info: Fields,
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


def _request(params: Fields, info: Fields) -> RequestOptions:
    """What it is asked with; a model's most tokens are told under two names."""
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


def _limits(top: Fields, params: Fields, times: Times) -> tuple[dict[str, Any], bool]:
    """A provider's limits, and whether none is of this deployment alone."""
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
    """What the file doesn't say; LiteLLM knows it from lists of its own."""
    found = []
    if target["input_price"] is None:
        alone = "one price of two, which is left out" if one_price else "no price"
        found.append(f"{alone}; see prefill-router prices")
    if not target["accepts"] and target["serves"] != ("embeddings",):
        found.append("no word of what it supports; write accepts, or it gets texts alone")
    return found
