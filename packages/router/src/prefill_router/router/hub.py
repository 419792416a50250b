"""Routers on the Hugging Face hub: the folder as it is, without running any code from it.

Errors of the hub are reported in our own words, since those of the libraries quote headers, and
with them tokens.
"""

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (  # type: ignore[attr-defined]
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # that of the httpx which the hub's library uses, under whatever name
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from prefill_router.errors import ConfigError, CorruptError
from prefill_router.plugins import find_plugins, load_plugin, suggest_distribution
from prefill_router.router.storage import FILES, is_router, load_router, save_router

if TYPE_CHECKING:
    from prefill_router.router.router import Router

# ValueError: an invalid token, or an invalid response of the hub.
_FAILURES = (HTTPError, OSError, ValueError)
_REFUSAL_STATUSES = (401, 403)
_GROUP: Final = "prefill_router.routers"
_LOG_IN = "log in with: hf auth login, set HF_TOKEN, or pass a token"


def push(router: "Router", repo_id: str, *, private: bool, token: str | None) -> str:
    """Upload a router's folder in one commit; returns the commit's URL.

    Raises:
        ConfigError: The hub can't be reached, or refuses the name or the token.
    """
    api = HfApi(token=token)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "router"
        save_router(router, folder)
        try:
            api.create_repo(repo_id, private=private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repo_id, folder_path=folder, commit_message="A prefill router"
            )
        except _FAILURES as error:
            raise ConfigError(f"can't upload to {repo_id!r}: {_explain_failure(error)}") from None
    return str(commit.commit_url)


def load(name: str, *, revision: str | None, token: str | None) -> "Router":
    """The router of a local folder, of a URL, of this package, or of a repository of the hub.

    Raises:
        ConfigError: There is no router, or the hub can't be reached or refuses.
        CorruptError: A file is missing, isn't what was written, or is of another version.
    """
    if "://" in name:
        return load_router(name)
    if os.path.isdir(name):  # noqa: PTH112  # unlike Path.is_dir, false where no such name can be
        return load_router(Path(name))
    if name in find_plugins(_GROUP):
        return load_router(Path(load_plugin(_GROUP, name)))
    home = suggest_distribution(_GROUP, name)
    if home:
        raise ConfigError(f"there is no router {name!r} here{home}")
    folder = _download_files(name, revision, token)
    if not is_router(folder):
        raise ConfigError(f"the repository {name!r} holds no router; check its name")
    try:
        return load_router(folder)
    except CorruptError as error:
        raise CorruptError(
            f"{error}. This is a copy of the repository {name!r}: remove {folder.parents[1]} to "
            "download it again; if that doesn't help, the repository itself is at fault"
        ) from None


def _download_files(name: str, revision: str | None, token: str | None) -> Path:
    try:
        return Path(
            snapshot_download(name, revision=revision, token=token, allow_patterns=list(FILES))
        )
    except _FAILURES as error:
        raise ConfigError(
            f"{name!r} isn't a local folder, and can't be loaded from the hub: "
            f"{_explain_failure(error)}"
        ) from None


def _explain_failure(error: Exception) -> str:
    """What went wrong and what to do, without quoting the request's headers."""
    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        return _explain_failure(error.__cause__)
    if isinstance(error, HFValidationError):
        return "that isn't the name of a repository; write it like you/your-router"
    if isinstance(error, RevisionNotFoundError):
        return "the repository has no such revision; leave it out for the newest"
    if isinstance(error, RepositoryNotFoundError):
        return f"there is no such repository, or it is private; check the name, or {_LOG_IN}"
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        if status in _REFUSAL_STATUSES:
            return f"the hub refuses the token, or there is none (HTTP {status}); {_LOG_IN}"
        return f"the hub returned an error (HTTP {status}); try again later"
    if isinstance(error, OSError) and error.filename:
        return f"{error.strerror}: {error.filename}"
    if isinstance(error, HTTPError | OSError):
        return (
            f"the hub can't be reached ({type(error).__name__}); check the connection and "
            "HF_ENDPOINT, unset HF_HUB_OFFLINE, or copy the router's folder by hand"
        )
    return "the token or the hub's response is invalid; " + _LOG_IN
