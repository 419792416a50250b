"""Where the gateway may listen, and the names that it may be called by."""

from ipaddress import ip_address
from typing import final

from prefill_router.errors import ConfigError
from prefill_router.gateway.guarding.keys import ClientKeys
from prefill_router.gateway.settings import Listen
from prefill_router.upstream import is_loopback

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MOST_KNOWN = 64


def check_listen(listen: Listen, keys: ClientKeys | None) -> None:
    """Check that whoever can reach the gateway must bear a key, or is on this machine.

    Raises:
        ConfigError: It would listen on other addresses than loopback, and asks for no keys; or a
            name in `hosts` is none.
    """
    if keys is None and not is_loopback(listen.host):
        raise ConfigError(
            f"listen.host is {listen.host!r}, which others can reach, and there are no keys; make "
            "one with `prefill-router key new NAME --file keys.yaml` and set keys to that file, or "
            "listen on 127.0.0.1"
        )
    wrong = [name for name in listen.hosts if not name or set(name) & set("/*@ ") or "://" in name]
    if wrong:
        raise ConfigError(
            f"listen.hosts has {wrong}; name hosts as clients call them, such as gateway.example"
        )


@final
class Hosts:
    """The names in `Host` headers that the gateway answers to.

    A page elsewhere can have its own name lead to this machine (DNS rebinding), and its browser
    then takes the gateway for that page's own site; but the browser still sends the page's name.
    An address can't be led elsewhere: where the gateway listens on every address of this machine,
    all addresses are answered to.

    Args:
        listen: Where the gateway listens.
    """

    def __init__(self, listen: Listen) -> None:
        names = (*_LOOPBACK, listen.host, *listen.hosts)
        self._names = {_plain(name)[0] for name in names}
        self._every_address = _is_unspecified(listen.host)
        self._known: set[bytes] = set()

    def answer_to(self, host: bytes) -> bool:
        """Whether a `Host` header names this gateway, at any port."""
        if host in self._known:
            return True
        name, port = _plain(host.decode("latin-1"))
        if port and not (port.isascii() and port.isdigit()):
            return False
        good = name in self._names or (self._every_address and _is_address(name))
        if good and len(self._known) < _MOST_KNOWN:
            self._known.add(host)
        return good


def _plain(host: str) -> tuple[str, str]:
    """A host and its port, without the brackets of IPv6 and the dot at the end of full names."""
    if host.count(":") > 1 and not host.startswith("["):
        return host.lower(), ""
    name, _, port = host.partition("]" if host.startswith("[") else ":")
    return name.lstrip("[").lower().removesuffix("."), port.removeprefix(":")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_unspecified(host: str) -> bool:
    return _is_address(host) and ip_address(host).is_unspecified
