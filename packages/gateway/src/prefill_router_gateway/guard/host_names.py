"""Where the gateway may listen, and the names of hosts that it answers to."""

from ipaddress import ip_address
from typing import final

from prefill_router.endpoints import is_loopback
from prefill_router.errors import ConfigError
from prefill_router_gateway.guard.client_keys import ClientKeys
from prefill_router_gateway.settings import ListenSettings


def check_listen(listen: ListenSettings, keys: ClientKeys | None) -> None:
    """Check that only this machine can reach the gateway, or that keys are required.

    Raises:
        ConfigError: It would listen on an address other than loopback without keys, or a name in
            `hosts` isn't a host name.
    """
    if keys is None and not is_loopback(listen.host):
        raise ConfigError(
            f"listen.host is {listen.host!r}, which others can reach, and there are no keys; make "
            "one with `prefill-router key new NAME --file keys.yaml` and set keys to that file, or "
            "listen on 127.0.0.1"
        )
    wrong_names = [
        name for name in listen.hosts if not name or set(name) & set("/*@ ") or "://" in name
    ]
    if wrong_names:
        raise ConfigError(
            f"listen.hosts has {wrong_names}; give host names as clients use them, such as "
            "gateway.example"
        )


_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MOST_HOSTS = 64


@final
class HostNames:
    """The names in `Host` headers that the gateway answers to.

    A page elsewhere can make its own host name resolve to this machine (DNS rebinding), so that a
    browser takes the gateway for that page's site. However, the browser still sends the page's host
    name. IP addresses can't be rebound: where the gateway listens on all addresses of this machine,
    it answers to any address.

    Args:
        listen: Where the gateway listens.
    """

    def __init__(self, listen: ListenSettings) -> None:
        names = (*_LOOPBACK, listen.host, *listen.hosts)
        self._names = {_split_host(name)[0] for name in names}
        self._every_address = _is_address(listen.host) and ip_address(listen.host).is_unspecified
        self._answered: set[bytes] = set()

    def answer_to(self, host: bytes) -> bool:
        """Whether a `Host` header names this gateway, at any port."""
        if host in self._answered:
            return True
        name, port = _split_host(host.decode("latin-1"))
        if port and not (port.isascii() and port.isdigit()):
            return False
        good = name in self._names or (self._every_address and _is_address(name))
        if good and len(self._answered) < _MOST_HOSTS:
            self._answered.add(host)
        return good


def _split_host(host: str) -> tuple[str, str]:
    """A host and its port, without IPv6 brackets or the final dot of a full name."""
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
