"""Reads what a request asks of the router: its model's name, headers, and OpenRouter's fields.

The model's name requests routing, perhaps at a given lam, or names one target. Headers have
preferences of the gateway's own. OpenRouter's fields are its trade-off of cost against quality,
allowed models, and fallbacks; they are for the gateway, and no target gets them. Of the other
headers, `HeaderFilter` forwards some of a client's to the target, and `to_client` most of the
target's to the client.
"""

import difflib
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, final

from prefill_router.errors import ConfigError
from prefill_router.targets import Pool
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.records import HEADER, SCORED, SESSION_HEADER, Header, Scored

_PREFIX = HEADER.encode()
ROUTING_NAMES = ("auto", "prefill-router", "MoM", "openrouter/auto", "openrouter/auto-beta")
"""Model names that route at the configured lam; `MoM` is vLLM semantic-router's."""
_route_llm = re.compile(r"router-(?P<router>.+)-(?P<threshold>[^-]*)").fullmatch
_LONGEST = 128  # characters of a name that is quoted or compared with the known ones
_MOST_SHOWN = 20


@final
@dataclass(frozen=True, kw_only=True)
class RequestedModel:
    """A parsed model name.

    Attributes:
        target: The named target; None where the request is to be routed.
        lam: The trade-off in the name; None where it has none.
    """

    target: str | None = None
    lam: float | None = None


_ROUTED = RequestedModel()


def parse_model(
    name: str,
    *,
    targets: Collection[str],
    names: Mapping[str, float],
    models: Collection[str] = (),
) -> RequestedModel:
    """Parse a model name.

    A target's name takes precedence, even where it equals one of `ROUTING_NAMES`. Then come the
    settings' names, `ROUTING_NAMES`, `prefill-router:LAM`, and RouteLLM's `router-NAME-THRESHOLD`.
    RouteLLM calls its strong model where that model's win probability reaches the threshold, so
    that 0 always calls it and 1 hardly ever: lam is 1 minus the threshold. NAME, RouteLLM's choice
    of a router, is ignored.

    Args:
        name: The model name in the request.
        targets: The names of the targets.
        names: The routing names in the settings, each with its lam.
        models: Further names that may be asked for, for the error.

    Raises:
        RefusalError: 404 `model_not_found` where the name is unknown, 400 where its lam or
            threshold isn't a number from 0 to 1.
    """
    if name in targets:
        return RequestedModel(target=name)
    if name in names:
        return RequestedModel(lam=names[name])
    if name in ROUTING_NAMES:
        return _ROUTED
    if name.startswith("prefill-router:"):
        return RequestedModel(lam=_share(name.partition(":")[2], "lam", "prefill-router:0.7"))
    match = _route_llm(name) if len(name) <= _LONGEST else None
    if match is not None:
        threshold = _share(match["threshold"], "threshold", "router-mf-0.3")
        return RequestedModel(lam=1 - threshold)
    raise _unknown_model(name, list(dict.fromkeys((*ROUTING_NAMES, *names, *models, *targets))))


def _share(text: str, what: str, example: str) -> float:
    number = read_number(text)
    if number is None or number > 1:
        raise RefusalError(
            f"the {what} in the model's name isn't a number from 0 to 1; write {example}",
            code="invalid_value",
            param="model",
        )
    return number


def _unknown_model(name: str, names: list[str]) -> RefusalError:
    close = difflib.get_close_matches(name, names, n=1) if len(name) <= _LONGEST else []
    subject = f"the model {name!r}" if len(name) <= _LONGEST else "the model"
    nearest = f"; did you mean {close[0]!r}?" if close else ";"
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return RefusalError(
        f"{subject} doesn't exist{nearest} the models are {', '.join(names[:_MOST_SHOWN])}{more}, "
        "and prefill-router:LAM",
        status=404,
        code="model_not_found",
        param="model",
    )


_LONGEST_SESSION = 256
_FIELDS = {
    _PREFIX + b"lam": "lam",
    _PREFIX + b"max-cost": "max_cost",
    _PREFIX + b"allow": "allow",
    _PREFIX + b"exclude": "exclude",
    _PREFIX + b"scored": "scored",
    _PREFIX + b"learn": "learn",
    SESSION_HEADER.encode(): "session",
}


@final
@dataclass(frozen=True, kw_only=True)
class RoutingPreferences:
    """The routing preferences of a request.

    Attributes:
        lam: The trade-off; None where none is given.
        max_cost: Targets estimated to cost more than this many US dollars are excluded.
        allow: Only these targets may answer; None for all.
        exclude: These targets must not answer, even where they are allowed.
        session: The client's name of the conversation.
        scored: The part of the request that the encoder reads.
        learn: Whether the request may be kept for the next router to learn from.
        fallbacks: The only targets to call if the first fails, in order; empty for all others.
    """

    lam: float | None = None
    max_cost: float | None = None
    allow: frozenset[str] | None = None
    exclude: frozenset[str] = frozenset()
    session: str | None = None
    scored: Scored | None = None
    learn: bool = True
    fallbacks: tuple[str, ...] = ()


NO_PREFERENCES = RoutingPreferences()


def read_preferences(
    headers: Sequence[tuple[bytes, bytes]], targets: Collection[str]
) -> RoutingPreferences:
    """Read the gateway's request headers; `NO_PREFERENCES` where there are none.

    Lists of targets are names separated by commas, and may be split over several headers.

    Args:
        headers: The request's headers, with names in lower case, as in ASGI.
        targets: The names of the targets.

    Raises:
        RefusalError: A header is malformed, names an unknown target, is repeated, or has the
            gateway's prefix but an unknown name.
    """
    fields: dict[str, Any] = {}
    for name, value in headers:
        field = _FIELDS.get(name)
        if field is not None:
            _take_field(fields, field, _Header(name.decode(), _text(name, value)), targets)
        elif name.startswith(_PREFIX):
            names = ", ".join(field.decode() for field in _FIELDS)
            start = name[:64].decode("latin-1")
            raise RefusalError(f"there is no header {start}; the headers are {names}")
    return RoutingPreferences(**fields) if fields else NO_PREFERENCES


@final
@dataclass(frozen=True, slots=True)
class _Header:
    name: str
    text: str

    def wrong(self, due: str) -> RefusalError:
        return RefusalError(f"the header {self.name} {due}", param=self.name)


def _take_field(
    fields: dict[str, Any], field: str, header: _Header, targets: Collection[str]
) -> None:
    if field in ("allow", "exclude"):
        fields[field] = fields.get(field, frozenset()) | _names(header, targets)
        return
    if field in fields:
        raise header.wrong("is repeated; send it once")
    fields[field] = _READERS[field](header)


def _lam(header: _Header) -> float:
    lam = read_number(header.text)
    if lam is None or lam > 1:
        raise header.wrong("must be a number from 0 to 1, for example 0.7")
    return lam


def _max_cost(header: _Header) -> float:
    dollars = read_number(header.text)
    if dollars is None:
        raise header.wrong("must be an amount in US dollars, for example 0.002")
    return dollars


def _scored(header: _Header) -> Scored:
    for scored in SCORED:
        if header.text == scored:
            return scored
    raise header.wrong(f"must be one of {', '.join(SCORED)}")


def _session(header: _Header) -> str | None:
    if len(header.text) > _LONGEST_SESSION or not (header.text or " ").isprintable():
        raise header.wrong(f"must be at most {_LONGEST_SESSION} printable characters")
    return header.text or None


def _learn(header: _Header) -> bool:
    if header.text not in ("yes", "no"):
        raise header.wrong("must be yes or no")
    return header.text == "yes"


_READERS = {
    "lam": _lam,
    "max_cost": _max_cost,
    "scored": _scored,
    "session": _session,
    "learn": _learn,
}


def _names(header: _Header, targets: Collection[str]) -> frozenset[str]:
    names = frozenset(filter(None, map(str.strip, header.text.split(","))))
    if not names:
        raise header.wrong("names no target; write names separated by commas")
    unknown = sorted(names - frozenset(targets))
    if unknown:
        listed = ", ".join(name[:64] for name in unknown[:5])
        raise header.wrong(f"names unknown targets: {listed}; see /v1/models")
    return names


def _text(name: bytes, value: bytes) -> str:
    try:
        return value.decode().strip()
    except UnicodeDecodeError:
        raise _Header(name.decode(), "").wrong("isn't UTF-8; send it in UTF-8") from None


_is_number = re.compile(
    r"(?:[0-9]{1,32}(?:\.[0-9]{0,32})?|\.[0-9]{1,32})(?:[eE][+-]?[0-9]{1,3})?"
).fullmatch


def read_number(text: str) -> float | None:
    """Read a finite, non-negative number; None where the text isn't one.

    Only JSON's notation, `.5` and `1.` are accepted: no sign, no `nan`, no `1_000`, no digits of
    other scripts.
    """
    if _is_number(text) is None:
        return None
    number = float(text)
    return number if math.isfinite(number) else None


HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Hop-by-hop headers (RFC 9110, section 7.6.1), and those with credentials for proxies."""
ANTHROPIC_VERSION = b"anthropic-version"
"""The header that every client of Anthropic's protocol sends."""
_PASSED = frozenset(
    (
        *(ANTHROPIC_VERSION, b"anthropic-beta", b"user-agent", b"idempotency-key"),
        *(b"http-referer", b"x-title", b"accept", b"traceparent", b"tracestate"),
    )
)
_PASSED_PREFIXES = (b"openai-", b"x-stainless-")
_NEVER_PASSED = HOP_BY_HOP | {
    b"authorization",
    b"x-api-key",
    b"api-key",
    b"openai-organization",  # the client's account, while the target gets another account's key
    b"openai-project",
    b"cookie",
    b"host",
    b"content-length",
    b"content-type",
    b"content-encoding",
    b"accept-encoding",
    b"expect",
    SESSION_HEADER.encode(),
}
_SET: list[Header] = [(b"content-type", b"application/json"), (b"accept-encoding", b"identity")]
_FOR_BROWSERS = frozenset(
    {
        b"alt-svc",
        b"clear-site-data",
        b"content-security-policy",
        b"cross-origin-embedder-policy",
        b"cross-origin-opener-policy",
        b"expect-ct",
        b"nel",
        b"refresh",
        b"report-to",
        b"service-worker-allowed",
        b"set-cookie",
        b"set-cookie2",
        b"strict-transport-security",
    }
)
"""Headers that a browser would apply to the gateway's own origin, and so to all its pages."""
_NEVER_BACK = HOP_BY_HOP | _FOR_BROWSERS | {b"server", b"date"}
_NEVER_BACK_PREFIXES = (_PREFIX, b"access-control-")


@final
class HeaderFilter:
    """Selects the client's headers that are forwarded to a target.

    These are the headers of the OpenAI and Anthropic protocols and SDKs, and those that identify
    the application and the trace; never a key, a cookie or a hop-by-hop header.

    Args:
        further: Names of further headers, from the settings.

    Raises:
        ConfigError: One of them is never forwarded.
    """

    def __init__(self, further: Iterable[str] = ()) -> None:
        names = frozenset(name.strip().lower().encode() for name in further)
        refused = sorted(
            name.decode()
            for name in names
            if not name or name in _NEVER_PASSED or name.startswith(_PREFIX)
        )
        if refused:
            raise ConfigError(
                f"forward_headers has {refused}, which are never forwarded; remove them"
            )
        self._names = _PASSED | names

    def to_target(self, headers: Sequence[Header]) -> list[Header]:
        """The headers of the call to a target, without its key.

        Args:
            headers: The client's headers, with names in lower case, as in ASGI.
        """
        names, dropped = self._names, _connection_headers(headers)
        client_headers = [
            (name, value)
            for name, value in headers
            if (name in names or name.startswith(_PASSED_PREFIXES))
            and name not in _NEVER_PASSED
            and name not in dropped
        ]
        return client_headers + _SET


def to_client(headers: Sequence[Header], *, reframed: bool) -> list[Header]:
    """The response headers of a target that the client gets, with names in lower case.

    Left out are hop-by-hop headers, those that browsers would apply to the gateway's origin
    (cookies, transport security, CORS), and those that only the gateway sends.

    Args:
        headers: The target's headers.
        reframed: Whether to leave out the length of the body, which the gateway sends itself or,
            for a stream, not at all.
    """
    lowered = [(name.lower(), value) for name, value in headers]
    dropped = _connection_headers(lowered)
    return [
        (name, value)
        for name, value in lowered
        if name not in _NEVER_BACK
        and not name.startswith(_NEVER_BACK_PREFIXES)
        and not (reframed and name == b"content-length")
        and name not in dropped
    ]


def _connection_headers(headers: Sequence[Header]) -> Collection[bytes]:
    named = [value.lower() for name, value in headers if name == b"connection"]
    if set(named) <= {b"keep-alive", b"close"}:
        return ()
    return frozenset(token.strip() for token in b",".join(named).split(b","))


_TRADEOFF, _ALLOWED, _MODELS, _PLUGINS = (
    "cost_quality_tradeoff",
    "allowed_models",
    "models",
    "plugins",
)
OPENROUTER_FIELDS = frozenset((_TRADEOFF, _ALLOWED, _MODELS, _PLUGINS))
"""The fields of a body that may have them."""
_PLUGIN = "auto-router"
_MOST_TRADEOFF = 10
_MOST_NAMES, _LONGEST_NAME = 100, 128

_LONGEST_HEADER = 1000


@final
@dataclass(frozen=True, kw_only=True)
class OpenRouterOptions:
    """What a request asks for in OpenRouter's fields.

    Attributes:
        tradeoff: From 0 (quality) to 10 (cost); None where it isn't given.
        allowed: Patterns of the targets that may answer, `*` for any characters; empty for all.
        models: The targets to call in turn if the first fails; empty where none are given.
    """

    tradeoff: float | None = None
    allowed: tuple[str, ...] = ()
    models: tuple[str, ...] = ()

    @property
    def lam(self) -> float | None:
        """The lam of this trade-off, 1 - tradeoff / 10; None where it isn't given."""
        return None if self.tradeoff is None else (_MOST_TRADEOFF - self.tradeoff) / _MOST_TRADEOFF

    @property
    def fields(self) -> dict[str, Any]:
        """The fields as the client wrote them, for the receipt."""
        fields = {
            _TRADEOFF: self.tradeoff,
            _ALLOWED: list(self.allowed),
            _MODELS: list(self.models),
        }
        return {name: value for name, value in fields.items() if value not in (None, [])}

    @property
    def header(self) -> bytes:
        """The same for a response header: JSON in ASCII, cut where it is long."""
        return json.dumps(self.fields, separators=(",", ":")).encode()[:_LONGEST_HEADER]

    def find_target(self, model: str, pool: Pool, names: Sequence[str]) -> str:
        """The target that a model's name stands for, which may be a model id beside `models`."""
        if not self.models or model in pool.models:
            return model
        return next(iter(_targets_of(model, pool, names)), model)

    def narrow(
        self, preferences: RoutingPreferences, pool: Pool, names: Sequence[str]
    ) -> RoutingPreferences:
        """The preferences in a request's headers, narrowed by these.

        Args:
            preferences: The preferences.
            pool: All targets.
            names: The targets that the client may use.

        Raises:
            RefusalError: A name matches no target, or the header allows none of those matched.
        """
        allow = preferences.allow
        if self.allowed:
            matched = {n for n in names if any(_matches(p, n, pool) for p in self.allowed)}
            if not matched:
                raise _no_target(_ALLOWED, "", names)
            if allow is not None and not allow & matched:
                raise RefusalError(
                    f"{_ALLOWED} and the header {HEADER}allow have no target in common; send one",
                    param=_ALLOWED,
                )
            everything = allow is None and matched == set(pool.names)
            allow = None if everything else frozenset(matched) & (allow or matched)
        fallbacks: dict[str, None] = {}
        for model in self.models:
            targets = _targets_of(model, pool, names)
            if not targets:
                raise _no_target(_MODELS, f": {model!r}", names)
            fallbacks |= dict.fromkeys(targets)
        return replace(preferences, allow=allow, fallbacks=tuple(fallbacks))


def _targets_of(model: str, pool: Pool, names: Sequence[str]) -> list[str]:
    return [model] if model in names else [n for n in names if model in _ids(n, pool)]


def _ids(name: str, pool: Pool) -> set[str]:
    """A target's name and model ids."""
    target = pool[name]
    models = (target.base, target.model, *(endpoint.model for endpoint in target.endpoints))
    return {name, *(model for model in models if model is not None)}


def _matches(pattern: str, name: str, pool: Pool) -> bool:
    only_stars = re.sub(r"[\[?]", r"[\g<0>]", pattern)
    return any(fnmatchcase(own, only_stars) for own in _ids(name, pool))


def _no_target(field: str, which: str, names: Sequence[str]) -> RefusalError:
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    listed = ", ".join(names[:_MOST_SHOWN]) + more
    return RefusalError(
        f"{field} has no target's name or model id{which}; the targets are {listed}", param=field
    )


def take_options(
    text: str, value: Mapping[str, Any], spans: Mapping[str, tuple[int, int]]
) -> tuple[OpenRouterOptions | None, bytes]:
    """Read the fields of a body, and write the body without them; None where it has none.

    The values of the other fields keep their bytes. Without a `model`, the first of `models` takes
    its place; other plugins stay.

    Args:
        text: The body.
        value: Its fields.
        spans: The start and end of each field's value in the text.

    Raises:
        RefusalError: A field is malformed, or given twice with different values.
    """
    plugins = value.get(_PLUGINS)
    listed = plugins if isinstance(plugins, list) else []
    own = [p for p in listed if isinstance(p, dict) and p.get("id") == _PLUGIN]
    if not own and value.keys().isdisjoint((_TRADEOFF, _ALLOWED, _MODELS)):
        return None, b""
    places = [value, *(plugin for plugin in own if _is_enabled(plugin))]
    options = OpenRouterOptions(
        tradeoff=_check_tradeoff(_read_single_value(_TRADEOFF, places)),
        allowed=_model_names(_ALLOWED, _read_single_value(_ALLOWED, places)),
        models=_model_names(_MODELS, value.get(_MODELS)),
    )
    fields = {n: text[a:b] for n, (a, b) in spans.items() if n not in OPENROUTER_FIELDS}
    others = [plugin for plugin in listed if plugin not in own]
    if _PLUGINS in value and (others or not own):
        a, b = spans[_PLUGINS]
        fields[_PLUGINS] = json.dumps(others) if own else text[a:b]
    if options.models:
        fields.setdefault("model", json.dumps(options.models[0]))
    return options, b"{%b}" % ",".join(f"{json.dumps(n)}:{v}" for n, v in fields.items()).encode()


def _read_single_value(name: str, places: Iterable[Mapping[str, Any]]) -> Any:
    """The value of a field that may be given in several places; None where it isn't."""
    values = [place[name] for place in places if place.get(name) is not None]
    if any(value != values[0] for value in values):
        raise RefusalError(f"{name} is given twice, with different values; send one", param=name)
    return values[0] if values else None


def _is_enabled(plugin: dict[str, Any]) -> bool:
    enabled = plugin.get("enabled", True)
    if not isinstance(enabled, bool):
        raise RefusalError(f"enabled of the plugin {_PLUGIN} must be true or false", param=_PLUGINS)
    return enabled


def _check_tradeoff(tradeoff: Any) -> float | None:
    if tradeoff is None:
        return None
    if (
        isinstance(tradeoff, bool)
        or not isinstance(tradeoff, int | float)
        or not 0 <= tradeoff <= _MOST_TRADEOFF
    ):
        raise RefusalError(
            f"{_TRADEOFF} must be a number from 0 (quality) to {_MOST_TRADEOFF} (cost), "
            "for example 7",
            param=_TRADEOFF,
        )
    return tradeoff


def _model_names(field: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    names = value if isinstance(value, list) else []
    fit = [n for n in names if isinstance(n, str) and 0 < len(n) <= _LONGEST_NAME]
    if not 1 <= len(fit) == len(names) <= _MOST_NAMES or not "".join(fit).isprintable():
        raise RefusalError(
            f"{field} must be a list of 1 to {_MOST_NAMES} names of targets or models", param=field
        )
    return tuple(value)
