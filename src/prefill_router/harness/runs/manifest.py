"""`run.json`: what a run is, beside its database."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefill_router import files
from prefill_router.errors import ConfigError, CorruptError, FormatError
from prefill_router.harness.runs import schema
from prefill_router.targets import Pool

MANIFEST = "run.json"
LOCK = "run"


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run."""
    return (folder / MANIFEST).is_file()


def write_manifest(folder: Path, pool: Pool, options: Mapping[str, Any], *, created: str) -> None:
    """Write `run.json`, whole or not at all."""
    from prefill_router import __version__

    manifest = {
        "format": schema.VERSION,
        "package": __version__,
        "created": created,
        "options": dict(options),
        "pool": pool.public().to_dict(),
    }
    files.write_json(folder / MANIFEST, manifest)


def read_manifest(folder: Path) -> dict[str, Any]:
    """What `write_manifest` wrote.

    Raises:
        FormatError: The folder is no run, or one of a newer version.
        CorruptError: It isn't what was written.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        version, _ = manifest["format"], (manifest["pool"], manifest["options"])
        made = str(manifest["created"])
    except (FileNotFoundError, NotADirectoryError):
        raise FormatError(
            f"no run: it lacks the file {MANIFEST}; name a folder that collect has made",
            file=folder,
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CorruptError(f"{path} isn't what was written; copy the run again") from None
    if not isinstance(version, int) or version > schema.VERSION:
        raise FormatError(
            f"a run of format {version}; this version reads up to {schema.VERSION}: install a "
            "newer one",
            file=path,
        )
    return {**manifest, "created": made}


def check_place(folder: Path) -> None:
    """Check that a run can be made here.

    Raises:
        ConfigError: The folder holds something else, or can't be made.
    """
    files.check_place(folder, replaced=False)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; name a folder for the run")
    ours = (schema.DATABASE, f".{LOCK}.", MANIFEST)  # of a process that was killed at the start
    others = (
        [p.name for p in folder.iterdir() if not p.name.startswith(ours)] if folder.exists() else []
    )
    if others:
        raise ConfigError(
            f"{folder} is no run and isn't empty (it holds {sorted(others)[0]!r}); name another "
            "folder"
        )


def now() -> str:
    """The time, as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
