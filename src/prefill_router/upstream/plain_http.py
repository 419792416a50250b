"""Where a key may go unencrypted: to this machine, and to hosts that the environment names."""

from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from prefill_router.errors import ConfigError

PLAIN_HTTP = "PREFILL_ROUTER_PLAIN_HTTP"
"""The variable that names further hosts, separated by commas."""


def check_encrypted(base_url: str, environment: Mapping[str, str], *, whose: str) -> None:
    """Check that a key for this address can't be read on its way.

    Args:
        base_url: Where the key would go.
        environment: Where `PLAIN_HTTP` may name the address's host.
        whose: The key, in words.

    Raises:
        ConfigError: It could be.
    """
    parts = urlsplit(base_url)
    host = (parts.hostname or "").lower()
    allowed = {
        name.strip().lower().strip("[]") for name in environment.get(PLAIN_HTTP, "").split(",")
    }
    if parts.scheme == "https" or is_loopback(host) or host in allowed:
        return
    raise ConfigError(
        f"{whose} would go over plain http to {host}, where others can read it; use https://, or "
        f"allow that host by its name: {PLAIN_HTTP}={host}"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host.lower() == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
