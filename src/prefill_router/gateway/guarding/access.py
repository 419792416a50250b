"""Which paths need a key, and which an admin's."""

from typing import Literal

Access = Literal["free", "key", "admin"]
_FREE = frozenset({"/", "/health", "/ready", "/favicon.ico"})
_ADMIN = ("/metrics", "/page/api", "/admin")


def asks_a_target(path: str) -> bool:
    """Whether even reading this path asks a target, so that it counts as a request of the key."""
    return path.startswith("/v1/responses/")


def access_of(path: str) -> Access:
    """What a path needs, where keys are set; one that isn't known needs a key."""
    if path.startswith("/v1/"):
        return "key"
    if any(path == part or path.startswith(f"{part}/") for part in _ADMIN):
        return "admin"
    return "free" if path in _FREE or path.startswith("/page/") else "key"
