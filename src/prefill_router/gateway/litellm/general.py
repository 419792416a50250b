"""What LiteLLM's file says beside its models, as settings of the gateway."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from prefill_router.errors import ConfigError
from prefill_router.gateway.litellm.fields import Fields

_NO_COUNTERPART = "has no counterpart"
_ROUTES = "the router chooses, and its order says who is next"
_WHY = {
    "routing_strategy": _ROUTES,
    "routing_strategy_args": _ROUTES,
    "fallbacks": _ROUTES,
    "default_fallbacks": _ROUTES,
    "content_policy_fallbacks": _ROUTES,
    "context_window_fallbacks": "who can't hold a request isn't asked, see context_tokens",
    "enable_pre_call_checks": "always so: who can't hold a request isn't asked",
    "model_group_alias": "a target has one name; routing.names are names that route",
    "master_key": "clients' keys are made by prefill-router key, and kept as hashes",
    "database_url": "receipts go to receipts.url",
    "forward_client_headers_to_llm_api": "see forward_headers",
    "drop_params": "what clients send goes on as it is",
    "cache": "answers aren't kept",
    "environment_variables": "set them where the gateway runs",
    "include": "other files aren't read; import each",
}
_PARTS = ("router_settings", "litellm_settings", "general_settings")
_MOST_RETRIES, _MOST_TARGETS, _MOST_SECONDS, _MOST_COUNT = 10, 100, 86_400.0, 10_000_000


@final
@dataclass(frozen=True, kw_only=True)
class General:
    """What the file says of all its models.

    Attributes:
        settings: The gateway's, by part.
        answer: Seconds for a whole answer, where a deployment doesn't say; None where nothing is.
        first_token: Seconds until the first piece of a stream; None likewise.
        left_out: Places in the file without a counterpart, and why.
    """

    settings: Mapping[str, Mapping[str, Any]]
    answer: float | None = None
    first_token: float | None = None
    left_out: tuple[tuple[str, str], ...] = ()


def read_general(value: Mapping[str, Any], environment: Mapping[str, str]) -> General:
    """Read all but `model_list`; what `router_settings` say comes before `litellm_settings`.

    Raises:
        ConfigError: Values can't be used; the message names every one.
    """
    parts = [Fields(value.get(part), part, environment) for part in _PARTS]
    router, module, server = parts
    wrong: list[str] = []

    def either(name: str, *, whole: bool, older: str | None = None) -> Any:
        found = None
        for fields, field in ((router, name), (module, older or name)):
            try:
                own = fields.whole(field, least=0) if whole else fields.number(field)
            except ConfigError as error:
                wrong.append(str(error))
            else:
                found = own if found is None else found
        return found

    failures = _failures(
        retries=either("num_retries", whole=True),
        fallbacks=either("max_fallbacks", whole=True),
        fails=either("allowed_fails", whole=True),
        cooldown=either("cooldown_time", whole=False),
    )
    answer = either("timeout", whole=False, older="request_timeout")
    first_token = either("stream_timeout", whole=False)
    try:
        most = server.whole("global_max_parallel_requests")
    except ConfigError as error:
        wrong.append(str(error))
        most = None
    if wrong:
        raise ConfigError("; ".join(wrong))
    limits = {} if most is None else {"requests": min(most, _MOST_COUNT)}
    found = {"failures": failures, "limits": limits}
    return General(
        settings={part: values for part, values in found.items() if values},
        answer=answer,
        first_token=first_token,
        left_out=(*_unread(parts), *_others(value)),
    )


def _failures(
    *, retries: int | None, fallbacks: int | None, fails: int | None, cooldown: float | None
) -> dict[str, Any]:
    """LiteLLM counts what is allowed, the gateway what is too much; each in its own range."""
    found = {
        "retries": None if retries is None else min(retries, _MOST_RETRIES),
        "targets": None if fallbacks is None else min(fallbacks + 1, _MOST_TARGETS),
        "breaker_failures": None if fails is None else min(fails + 1, _MOST_COUNT),
        "breaker_seconds": None if cooldown is None else min(cooldown, _MOST_SECONDS),
    }
    return {name: value for name, value in found.items() if value is not None}


def _unread(parts: list[Fields]) -> list[tuple[str, str]]:
    return [
        (f"{name}.{field}", _WHY.get(field, _NO_COUNTERPART))
        for name, part in zip(_PARTS, parts, strict=True)
        for field in part.unread
    ]


def _others(value: Mapping[str, Any]) -> list[tuple[str, str]]:
    known = ("model_list", *_PARTS)
    return [
        (str(name), _WHY.get(str(name), _NO_COUNTERPART)) for name in value if name not in known
    ]
