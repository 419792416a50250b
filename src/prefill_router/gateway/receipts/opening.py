"""From a URL to its store."""

from pathlib import Path

from prefill_router.errors import ConfigError
from prefill_router.gateway.receipts.store import Store

_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")


def open_store(url: str, *, create: bool = True) -> Store:
    """Open a database of receipts.

    Args:
        url: `sqlite:///FILE`, `postgresql://...`, or the path of a file of SQLite.
        create: Whether its tables are made where there are none; without, it is only read.

    Raises:
        ConfigError: The URL is none of these.
        MissingExtraError: PostgreSQL needs the extra `postgres`.
        StoreError: It can't be reached or made, or holds something else.
    """
    if url.startswith(_POSTGRES):
        from prefill_router.gateway.receipts.postgres import PostgresStore

        return PostgresStore(url, create=create)
    if "://" in url and not url.startswith(_SQLITE):
        raise ConfigError(
            "the receipts' URL must begin with sqlite:/// or postgresql://, or be a file of SQLite"
        )
    file = file_of(url)
    if file is None:
        raise ConfigError("the receipts' URL names no file; write sqlite:///FILE")
    from prefill_router.gateway.receipts.sqlite import SqliteStore

    return SqliteStore(file, create=create)


def file_of(url: str) -> Path | None:
    """The file of SQLite that a URL names; None where it names none."""
    name = url.removeprefix(_SQLITE).partition("?")[0]
    return None if not name or url.startswith(_POSTGRES) else Path(name)
