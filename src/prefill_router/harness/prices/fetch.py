"""Fetching a list of prices: a file, or an address that is asked once, without a key."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from prefill_router.errors import ConfigError, FailureKind, FormatError, UpstreamError

MOST_BYTES: Final = 64 * 2**20
"""Of a list; OpenRouter's has less than one megabyte."""
CONNECT_SECONDS: Final = 10.0
WHOLE_SECONDS: Final = 60.0
_KINDS: Final[Mapping[int, FailureKind]] = {
    401: "unauthorised",
    403: "unauthorised",
    429: "rate_limited",
    503: "overloaded",
}


def is_address(source: str) -> bool:
    """Whether this is to be fetched, and not a file."""
    return source.startswith(("http://", "https://"))


def fetch(source: str, *, seconds: float = WHOLE_SECONDS) -> bytes:
    """What stands at an address, or in a file.

    Args:
        source: An address that begins with http:// or https://, or a file.
        seconds: How long the whole may take.

    Raises:
        FormatError: There is no such file, or there is too much in it.
        UpstreamError: The address can't be reached, or doesn't answer with it.
        ConfigError: The address isn't one.
    """
    return _from_address(source, seconds) if is_address(source) else _from_file(Path(source))


def _from_file(path: Path) -> bytes:
    if not path.is_file():
        raise FormatError("no such file; name a file, or an address with http://", file=path)
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise FormatError(f"has more than {MOST_BYTES:,} bytes; it is no list", file=path)
    return data


def _from_address(address: str, seconds: float) -> bytes:
    import httpx2

    if set("@?#") & set(address):  # a path is put after it, and it stands in messages
        raise ConfigError(
            "the address of the list has a name, a key or a query in it; none is needed, leave it "
            "out"
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
                    raise _failed(address, f"sends more than {MOST_BYTES:,} bytes", "malformed")
                if time.monotonic() > end:
                    raise _failed(address, f"takes over {seconds:g} s", "answer_timeout")
            return bytes(data)
    except httpx2.InvalidURL as error:
        raise ConfigError(f"{address} is no address: {error}") from None
    except httpx2.ConnectTimeout:
        raise _failed(address, "can't be reached in time", "connect_timeout") from None
    except httpx2.TimeoutException:
        raise _failed(address, "doesn't answer in time", "answer_timeout") from None
    except httpx2.ConnectError as error:
        raise _failed(address, f"can't be reached ({error})", "connect") from None
    except (httpx2.TransportError, httpx2.DecodingError) as error:
        raise _failed(address, f"breaks off ({type(error).__name__})", "broken_off") from None


def _check_status(address: str, status: int, headers: Mapping[str, str]) -> None:
    """Let only a whole answer pass.

    Raises:
        UpstreamError: It is something else.
    """
    if status == 200:
        return
    if 300 <= status < 400:
        place = headers.get("location", "nowhere")
        why = f"leads elsewhere, to {place[:200]}; name that address if you trust it"
        raise _failed(address, why, "refused", status)
    wait = headers.get("retry-after", "")
    after = f" after {wait[:40]} s" if wait.isdecimal() else " later"
    usual: FailureKind = "server_error" if status >= 500 else "refused"
    kind = _KINDS.get(status, usual)
    again = f"; try again{after}" if kind in ("rate_limited", "overloaded", "server_error") else ""
    raise _failed(address, f"answers with HTTP {status}{again}", kind, status)


def _failed(
    address: str, why: str, failure: FailureKind, status: int | None = None
) -> UpstreamError:
    return UpstreamError(
        f"the list of prices at {address} {why}. A file of it will do as well: --from FILE",
        failure=failure,
        status=status,
        billed="no",
    )
