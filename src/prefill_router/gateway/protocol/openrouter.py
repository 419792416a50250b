"""OpenRouter's routing fields: its dial of cost against quality, allowed models, and fallbacks.

They are for the gateway: no target gets them.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, final

from prefill_router.gateway.errors import RefusalError
from prefill_router.gateway.protocol.headers import RoutingPreferences
from prefill_router.gateway.protocol.json_splice import JsonFields
from prefill_router.gateway.types import HEADER
from prefill_router.targets import Pool

_DIAL, _ALLOWED, _MODELS, _PLUGINS = "cost_quality_tradeoff", "allowed_models", "models", "plugins"
OPENROUTER_FIELDS = frozenset((_DIAL, _ALLOWED, _MODELS, _PLUGINS))
"""The fields of a body that may have them."""
_PLUGIN = "auto-router"
_MOST_DIAL = 10
_MOST_NAMES, _LONGEST_NAME = 100, 128
_MOST_SHOWN = 20
_LONGEST_HEADER = 1000


@final
@dataclass(frozen=True, kw_only=True)
class OpenRouterOptions:
    """What a request asks for in OpenRouter's fields.

    Attributes:
        tradeoff: The dial, from 0 (quality) to 10 (cost); None where it isn't given.
        allowed: Patterns of the targets that may answer, `*` for any characters; empty for all.
        models: The targets to call in turn if the first fails; empty where none are given.
    """

    tradeoff: float | None = None
    allowed: tuple[str, ...] = ()
    models: tuple[str, ...] = ()

    @property
    def lam(self) -> float | None:
        """The trade-off that the dial stands for, 1 - dial / 10; None where it isn't given."""
        return None if self.tradeoff is None else (_MOST_DIAL - self.tradeoff) / _MOST_DIAL

    @property
    def asked(self) -> dict[str, Any]:
        """The fields as the client wrote them, for the receipt."""
        given = {_DIAL: self.tradeoff, _ALLOWED: list(self.allowed), _MODELS: list(self.models)}
        return {name: value for name, value in given.items() if value not in (None, [])}

    @property
    def header(self) -> bytes:
        """The same for a response header: JSON in ASCII, cut where it is long."""
        return json.dumps(self.asked, separators=(",", ":")).encode()[:_LONGEST_HEADER]

    def named_by(self, model: str, pool: Pool, names: Sequence[str]) -> str:
        """The target that a model's name stands for, which may be a model id beside `models`."""
        return next(iter(_targets_of(model, pool, names) if self.models else ()), model)

    def added_to(
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
            found = _targets_of(model, pool, names)
            if not found:
                raise _no_target(_MODELS, f": {model!r}", names)
            fallbacks |= dict.fromkeys(found)
        return replace(preferences, allow=allow, fallbacks=tuple(fallbacks))


def _targets_of(model: str, pool: Pool, names: Sequence[str]) -> list[str]:
    return [model] if model in names else [n for n in names if model in _ids(n, pool)]


def _ids(name: str, pool: Pool) -> set[str]:
    """A target's name and model ids."""
    target = pool[name]
    models = (target.model, *(endpoint.model for endpoint in target.endpoints))
    return {name, *(model for model in models if model is not None)}


def _matches(pattern: str, name: str, pool: Pool) -> bool:
    only_stars = re.sub(r"[\[?]", r"[\g<0>]", pattern)
    return any(fnmatchcase(known, only_stars) for known in _ids(name, pool))


def _no_target(field: str, which: str, names: Sequence[str]) -> RefusalError:
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    shown = ", ".join(names[:_MOST_SHOWN]) + more
    return RefusalError(
        f"{field} has no target's name or model id{which}; the targets are {shown}", param=field
    )


def take_options(text: str, fields: JsonFields) -> tuple[OpenRouterOptions | None, bytes]:
    """Read the fields of a body, and write the body without them; None where it has none.

    The values of the other fields keep their bytes. Without a `model`, the first of `models` takes
    its place; other plugins stay.

    Args:
        text: The body.
        fields: Its fields.

    Raises:
        RefusalError: A field is malformed, or given twice with different values.
    """
    value = fields.value
    plugins = value.get(_PLUGINS)
    listed = plugins if isinstance(plugins, list) else []
    own = [p for p in listed if isinstance(p, dict) and p.get("id") == _PLUGIN]
    if not own and value.keys().isdisjoint((_DIAL, _ALLOWED, _MODELS)):
        return None, b""
    given = [value, *(plugin for plugin in own if _is_enabled(plugin))]
    options = OpenRouterOptions(
        tradeoff=_tradeoff(_only(_DIAL, given)),
        allowed=_names(_ALLOWED, _only(_ALLOWED, given)),
        models=_names(_MODELS, value.get(_MODELS)),
    )
    kept = {n: text[a:b] for n, (a, b) in fields.spans.items() if n not in OPENROUTER_FIELDS}
    others = [plugin for plugin in listed if plugin not in own]
    if _PLUGINS in value and (others or not own):
        a, b = fields.spans[_PLUGINS]
        kept[_PLUGINS] = json.dumps(others) if own else text[a:b]
    if options.models:
        kept.setdefault("model", json.dumps(options.models[0]))
    return options, b"{%b}" % ",".join(f"{json.dumps(n)}:{v}" for n, v in kept.items()).encode()


def _only(name: str, given: Iterable[dict[str, Any]]) -> Any:
    """The value of a field that may be given in several places; None where it isn't."""
    found = [place[name] for place in given if place.get(name) is not None]
    if any(value != found[0] for value in found):
        raise RefusalError(f"{name} is given twice, with different values; send one", param=name)
    return found[0] if found else None


def _is_enabled(plugin: dict[str, Any]) -> bool:
    enabled = plugin.get("enabled", True)
    if not isinstance(enabled, bool):
        raise RefusalError(f"enabled of the plugin {_PLUGIN} must be true or false", param=_PLUGINS)
    return enabled


def _tradeoff(dial: Any) -> float | None:
    if dial is None:
        return None
    if isinstance(dial, bool) or not isinstance(dial, int | float) or not 0 <= dial <= _MOST_DIAL:
        raise RefusalError(
            f"{_DIAL} must be a number from 0 (quality) to {_MOST_DIAL} (cost), for example 7",
            param=_DIAL,
        )
    return dial


def _names(field: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    names = value if isinstance(value, list) else []
    fit = [n for n in names if isinstance(n, str) and 0 < len(n) <= _LONGEST_NAME]
    if not 1 <= len(fit) == len(names) <= _MOST_NAMES or not "".join(fit).isprintable():
        raise RefusalError(
            f"{field} must be a list of 1 to {_MOST_NAMES} names of targets or models", param=field
        )
    return tuple(value)
