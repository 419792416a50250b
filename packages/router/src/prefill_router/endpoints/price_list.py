"""The prices of a pool, refreshed from OpenRouter's list of models.

The list is a file, or an address that is fetched once without a key. Its prices are decimal strings
in dollars per token; -1 means that the price varies with the provider. They become dollars per
million tokens without rounding. Zero for cached input or reasoning is read as no separate price.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final, NamedTuple, final
from urllib.parse import quote

from prefill_router.errors import ConfigError, DataError, FailureKind, FormatError, UpstreamError
from prefill_router.importers import show_cell
from prefill_router.short_repr import short_repr
from prefill_router.targets import PRICES, Pool, Target

MOST_BYTES: Final = 64 * 2**20
"""The largest list that is read; OpenRouter's is less than one megabyte."""
CONNECT_SECONDS: Final = 10.0
WHOLE_SECONDS: Final = 60.0
_KINDS: Final[Mapping[int, FailureKind]] = {
    401: "unauthorised",
    403: "unauthorised",
    429: "rate_limited",
    503: "overloaded",
}


def is_address(source: str) -> bool:
    """Whether a source is a web address rather than a file."""
    return source.startswith(("http://", "https://"))


def fetch(source: str, *, seconds: float = WHOLE_SECONDS) -> bytes:
    """Read a file or a web address.

    Args:
        source: An address that begins with http:// or https://, or a file.
        seconds: Time limit for the whole download.

    Raises:
        FormatError: There is no such file, or it is too large.
        UpstreamError: The address can't be reached, or answers with an error.
        ConfigError: The address isn't valid.
    """
    return _download(source, seconds) if is_address(source) else _read_file(Path(source))


def _read_file(path: Path) -> bytes:
    if not path.is_file():
        raise FormatError("no such file; name a file, or an address with http://", file=path)
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise FormatError(f"has over {MOST_BYTES:,} bytes; it isn't a list of prices", file=path)
    return data


def _download(address: str, seconds: float) -> bytes:
    import httpx2

    if set("@?#") & set(address):  # a path is appended to it, and messages quote it
        raise ConfigError(
            "the address of the list contains a user name, a key or a query; none is needed, so "
            "leave it out"
        )
    end = time.monotonic() + seconds
    limits = httpx2.Timeout(min(seconds, CONNECT_SECONDS * 2), connect=CONNECT_SECONDS)
    try:
        with (
            httpx2.Client(timeout=limits, follow_redirects=False) as client,
            client.stream("GET", address, headers={"Accept": "application/json"}) as reply,
        ):
            _check_status(address, reply.status_code, reply.headers)
            data = bytearray()
            for piece in reply.iter_bytes():
                data += piece
                if len(data) > MOST_BYTES:
                    raise _list_error(address, f"sends more than {MOST_BYTES:,} bytes", "malformed")
                if time.monotonic() > end:
                    raise _list_error(address, f"takes over {seconds:g} s", "answer_timeout")
            return bytes(data)
    except httpx2.InvalidURL as error:
        raise ConfigError(f"{address} is no address: {error}") from None
    except httpx2.ConnectTimeout:
        raise _list_error(address, "can't be reached in time", "connect_timeout") from None
    except httpx2.TimeoutException:
        raise _list_error(address, "doesn't answer in time", "answer_timeout") from None
    except httpx2.ConnectError as error:
        raise _list_error(address, f"can't be reached ({error})", "connect") from None
    except (httpx2.TransportError, httpx2.DecodingError) as error:
        raise _list_error(address, f"breaks off ({type(error).__name__})", "broken_off") from None


def _check_status(address: str, status: int, headers: Mapping[str, str]) -> None:
    """Check that the response is a success.

    Raises:
        UpstreamError: It is a redirect or an error.
    """
    if status == 200:
        return
    if 300 <= status < 400:
        place = headers.get("location", "nowhere")
        why = f"redirects to {place[:200]}; give that address if you trust it"
        raise _list_error(address, why, "refused", status)
    wait = headers.get("retry-after", "")
    after = f" after {wait[:40]} s" if wait.isdecimal() else " later"
    usual: FailureKind = "server_error" if status >= 500 else "refused"
    kind = _KINDS.get(status, usual)
    again = f"; try again{after}" if kind in ("rate_limited", "overloaded", "server_error") else ""
    raise _list_error(address, f"answers with HTTP {status}{again}", kind, status)


def _list_error(
    address: str, why: str, failure: FailureKind, status: int | None = None
) -> UpstreamError:
    return UpstreamError(
        f"the list of prices at {address} {why}. A downloaded copy works too: --from FILE",
        failure=failure,
        status=status,
        billed="no",
    )


OPENROUTER: Final = "https://openrouter.ai/api/v1/models"
_MILLION = Decimal(1_000_000)
_MOST_EXPENSIVE = Decimal("0.01")  # dollars per token; ten times what any model has cost so far
_PER_REQUEST = "request"


@final
class PriceChange(NamedTuple):
    """The prices of one target before and after the list was read.

    Attributes:
        target: Its name.
        model: The model in the list that the new prices belong to.
        provider: The provider whose prices they are; None for the model's own.
        before: US dollars per million tokens, in the order of `PRICES`; None where unknown.
        after: The new prices, likewise.
    """

    target: str
    model: str
    provider: str | None
    before: tuple[float | None, ...]
    after: tuple[float | None, ...]


@short_repr
@final
@dataclass(frozen=True, kw_only=True)
class RefreshedPool:
    """A pool with refreshed prices.

    Attributes:
        pool: The pool, with the date of the prices.
        source: The list's file or address.
        changes: The targets that were in the list, whether or not their price differs.
        reasons: The other targets by name, each with the reason why its price is unchanged.
        notes: Further remarks, for example of costs that the prices leave out.
    """

    pool: Pool
    source: str
    changes: tuple[PriceChange, ...]
    reasons: Mapping[str, str]
    notes: tuple[str, ...]


def refresh_prices(
    pool: Pool,
    *,
    date: str,
    source: str = OPENROUTER,
    models: Mapping[str, str] | None = None,
    provider: str | None = None,
    providers: Mapping[str, str] | None = None,
    read: Callable[[str], bytes] = fetch,
) -> RefreshedPool:
    """Look up the prices of a pool's targets.

    Args:
        pool: The pool.
        date: Today, as ISO 8601; the date of prices that come from the list.
        source: The address of the list, or a file that holds it.
        models: The name in the list, by target; other targets are looked up by their `model` and
            then by their name.
        provider: The provider to take prices from where it serves the model; elsewhere the model's
            own price is taken.
        providers: The same by target; here the provider must serve the model.
        read: Reads an address or a file.

    Raises:
        ConfigError: A target is unknown, a model that was named isn't listed, its price varies, or
            no target is listed at all.
        FormatError: The source isn't a list of models.
        UpstreamError: The list can't be fetched.
    """
    model_names, provider_names = dict(models or {}), dict(providers or {})
    pool.indices([*model_names, *provider_names])
    if (provider or provider_names) and not is_address(source):
        raise ConfigError(f"a file such as {source} has no providers' prices; give an address")
    lookup = _Lookup(source, _parse_models(read(source), source), read)
    changes: list[PriceChange] = []
    reasons: dict[str, str] = {}
    for target in pool:
        try:
            own = provider_names.get(target.name)
            changes.append(
                lookup.find_change(target, model_names.get(target.name), own, own or provider)
            )
        except FormatError:
            raise
        except DataError as error:
            if target.name in {**model_names, **provider_names}:
                raise ConfigError(f"target {target.name!r}: {error}") from None
            reasons[target.name] = str(error)
    if not changes:
        name, why = next(iter(reasons.items()))
        raise ConfigError(f"{source} has a price for none of the targets; {name!r}: {why}")
    return RefreshedPool(
        pool=_set_prices(pool, changes, date),
        source=source,
        changes=tuple(changes),
        reasons=reasons,
        notes=tuple(lookup.notes),
    )


@final
class _Lookup:
    """Looks targets up in the list, and in the address's lists of the providers of a model."""

    def __init__(
        self, source: str, models: Mapping[str, Any], read: Callable[[str], bytes]
    ) -> None:
        self._source = source
        self._models = models
        self._read = read
        self.notes: list[str] = []

    def find_change(
        self, target: Target, model: str | None, own: str | None, at: str | None
    ) -> PriceChange:
        """What a target costs now.

        Raises:
            DataError: It isn't listed, or has no fixed price.
        """
        name = self._find_model(target) if model is None else self._require_listed(model)
        entry, provider = self._models[name], None
        if at is not None:
            offer = self._find_offer(name, at)
            if offer is not None:
                entry, provider = offer, at
            elif own is not None:
                raise DataError(f"{at!r} doesn't serve {name}")
            else:
                self.notes.append(f"{target.name}: {at} doesn't serve it; the model's own price")
        pricing = entry.get("pricing")
        if not isinstance(pricing, dict):
            raise DataError(f"the list has no pricing of {name}")
        before = tuple(getattr(target, price) for price in PRICES)
        after = (*_prices(pricing, name), target.cache_write_hour_price)
        change = PriceChange(target.name, name, provider, before, after)
        self._note_uncounted(target.name, pricing)
        return change

    def _require_listed(self, model: str) -> str:
        if model not in self._models:
            raise DataError(f"the list has no model {model!r}{self._suggest(model)}")
        return model

    def _find_model(self, target: Target) -> str:
        for name in (target.model, target.name):
            if name is not None and name in self._models:
                return name
        name_or_model = target.model or target.name
        raise DataError(f"the list has no model {name_or_model!r}{self._suggest(name_or_model)}")

    def _suggest(self, name: str) -> str:
        """A suggestion: the listed models with this name after the slash; empty if none."""
        last_part = name.rpartition("/")[2].lower()
        matches = [model for model in self._models if model.rpartition("/")[2].lower() == last_part]
        return f"; did you mean {' or '.join(matches[:3])}? name it with --map" if matches else ""

    def _find_offer(self, model: str, provider: str) -> Mapping[str, Any] | None:
        """The entry of a model's provider, found by name or tag; None where there is none."""
        address = f"{self._source.rstrip('/')}/{quote(model, safe='/:')}/endpoints"
        offers = [
            offer
            for offer in _parse_offers(self._read(address), address)
            if provider.lower() in (_lower(offer, "provider_name"), _lower(offer, "tag"))
        ]
        price_texts = {
            json.dumps(offer.get("pricing"), default=str, sort_keys=True) for offer in offers
        }
        if len(price_texts) > 1:
            tags = ", ".join(sorted(str(offer.get("tag")) for offer in offers))
            raise DataError(f"{provider!r} serves {model} at several prices; name one of {tags}")
        return offers[0] if offers else None

    def _note_uncounted(self, target: str, pricing: Mapping[str, Any]) -> None:
        """Note the costs that per-token prices leave out: per request, and for long prompts."""
        price = _dollars(pricing.get(_PER_REQUEST), _PER_REQUEST)
        if price:
            self.notes.append(f"{target}: also ${price} per request, which isn't counted")
        if pricing.get("overrides"):
            self.notes.append(f"{target}: long prompts have another price, which isn't counted")


def _parse_models(data: bytes, source: str) -> Mapping[str, Any]:
    entries = _parse_json(data, source)
    models = entries.get("data") if isinstance(entries, dict) else None
    if not isinstance(models, list) or not models:
        raise FormatError("isn't a list of models: it has no entries in data", file=source)
    return {
        entry["id"]: entry
        for entry in models
        if isinstance(entry, dict) and isinstance(entry.get("id"), str)
    }


def _parse_offers(data: bytes, address: str) -> Sequence[Mapping[str, Any]]:
    answer = _parse_json(data, address)
    model = answer.get("data") if isinstance(answer, dict) else None
    offers = model.get("endpoints") if isinstance(model, dict) else None
    if not isinstance(offers, list):
        raise FormatError("isn't a list of providers: it has no data.endpoints", file=address)
    return [offer for offer in offers if isinstance(offer, dict)]


def _parse_json(data: bytes, source: str) -> Any:
    try:
        return json.loads(data.decode("utf-8-sig"), parse_float=Decimal)
    except (ValueError, RecursionError):
        what = "a web page" if data.lstrip()[:1] == b"<" else "not JSON"
        raise FormatError(f"is {what}; a list of models is JSON", file=source) from None


def _prices(pricing: Mapping[str, Any], model: str) -> tuple[float | None, ...]:
    """Dollars per million tokens, in the order of `PRICES`; the list has none for an hour."""
    low, high = (
        _dollars(pricing.get("prompt"), "prompt"),
        _dollars(pricing.get("completion"), "completion"),
    )
    if low is None or high is None:
        raise DataError(f"the list has no price of {model} for both input and output")
    cached = _dollars(pricing.get("input_cache_read"), "input_cache_read")
    reasoning = _dollars(pricing.get("internal_reasoning"), "internal_reasoning")
    write = _dollars(pricing.get("input_cache_write"), "input_cache_write")
    return tuple(
        None if p is None else float(p * _MILLION)
        for p in (low, high, cached or None, reasoning or None, write or None)
    )


def _dollars(value: object, name: str) -> Decimal | None:
    """Dollars per unit; None where the list says nothing."""
    if value is None:
        return None
    try:
        price = Decimal(value) if isinstance(value, str | int | Decimal) else None
    except InvalidOperation:
        price = None
    if price is None or isinstance(value, bool) or not price.is_finite():
        raise DataError(f"its price for {name} is {show_cell(value)}, which isn't an amount")
    if price < 0:
        raise DataError(f"its price for {name} varies (the list says {price})")
    if price > _MOST_EXPENSIVE and name != _PER_REQUEST:
        raise DataError(
            f"its price for {name} is ${price} per token, which can't be; is the list in dollars "
            "per million tokens?"
        )
    return price


def _lower(offer: Mapping[str, Any], field: str) -> str:
    return str(offer.get(field, "")).lower()


def _set_prices(pool: Pool, changes: Sequence[PriceChange], date: str) -> Pool:
    by_target = {change.target: change for change in changes}
    targets = tuple(
        _reprice(target, by_target[target.name]) if target.name in by_target else target
        for target in pool
    )
    return replace(pool, targets=targets, prices_date=date)


def _reprice(target: Target, change: PriceChange) -> Target:
    prices: dict[str, Any] = dict(zip(PRICES, change.after, strict=True))
    return replace(target, **prices)
