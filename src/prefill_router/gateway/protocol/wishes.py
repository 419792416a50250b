"""What a request's own headers wish of its decision."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, final

from prefill_router.gateway.protocol.numbers import read_number
from prefill_router.gateway.refusal import RefusalError
from prefill_router.gateway.words import HEADER, SCORED, SESSION_HEADER, Scored

_LONGEST_SESSION = 256
_PREFIX = HEADER.encode()
_FIELDS = {
    _PREFIX + b"lam": "lam",
    _PREFIX + b"max-cost": "max_cost",
    _PREFIX + b"allow": "allow",
    _PREFIX + b"exclude": "exclude",
    _PREFIX + b"scored": "scored",
    SESSION_HEADER.encode(): "session",
}


@final
@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What a request's headers wish.

    Attributes:
        lam: The trade-off; None where none is given.
        max_cost: Targets that are estimated to cost more, US dollars, don't answer.
        allow: Only these targets may answer; None for all.
        exclude: These targets may not, even where they are allowed.
        session: What the client calls the conversation.
        scored: What of the request the encoder reads.
    """

    lam: float | None = None
    max_cost: float | None = None
    allow: frozenset[str] | None = None
    exclude: frozenset[str] = frozenset()
    session: str | None = None
    scored: Scored | None = None


NO_WISHES = Wishes()


def read_wishes(headers: Sequence[tuple[bytes, bytes]], targets: Collection[str]) -> Wishes:
    """Read the headers that the gateway knows; `NO_WISHES` where none is given.

    Lists of targets are names between commas, and may come in several headers.

    Args:
        headers: The request's, their names in lower case, as ASGI has them.
        targets: The names of the targets.

    Raises:
        RefusalError: A header is malformed, names a target that isn't there, comes twice, or
            begins as the gateway's do and is none of them.
    """
    found: dict[str, Any] = {}
    for name, value in headers:
        field = _FIELDS.get(name)
        if field is not None:
            _take(found, field, _Header(name.decode(), _text(name, value)), targets)
        elif name.startswith(_PREFIX):
            known = ", ".join(field.decode() for field in _FIELDS)
            raise RefusalError(f"there is no such header as {_shown(name)}; known are {known}")
    return Wishes(**found) if found else NO_WISHES


@final
@dataclass(frozen=True, slots=True)
class _Header:
    name: str
    text: str

    def wrong(self, due: str) -> RefusalError:
        return RefusalError(f"the header {self.name} {due}", param=self.name)


def _take(found: dict[str, Any], field: str, header: _Header, targets: Collection[str]) -> None:
    if field in ("allow", "exclude"):
        found[field] = found.get(field, frozenset()) | _names(header, targets)
        return
    if field in found:
        raise header.wrong("comes twice; send it once")
    found[field] = _READERS[field](header)


def _lam(header: _Header) -> float:
    lam = read_number(header.text)
    if lam is None or lam > 1:
        raise header.wrong("must be a number from 0 to 1, such as 0.7")
    return lam


def _max_cost(header: _Header) -> float:
    dollars = read_number(header.text)
    if dollars is None:
        raise header.wrong("must be US dollars, such as 0.002")
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


_READERS = {"lam": _lam, "max_cost": _max_cost, "scored": _scored, "session": _session}


def _names(header: _Header, targets: Collection[str]) -> frozenset[str]:
    names = frozenset(filter(None, map(str.strip, header.text.split(","))))
    if not names:
        raise header.wrong("names no target; write names between commas")
    unknown = sorted(names - frozenset(targets))
    if unknown:
        told = ", ".join(name[:64] for name in unknown[:5])
        raise header.wrong(f"names targets that aren't there: {told}; see /v1/models")
    return names


def _text(name: bytes, value: bytes) -> str:
    try:
        return value.decode().strip()
    except UnicodeDecodeError:
        raise RefusalError(f"the header {name.decode()} isn't UTF-8", param=name.decode()) from None


def _shown(name: bytes) -> str:
    return name[:64].decode("latin-1")
