"""Routers on the Hugging Face hub: the folder as it is, nothing of it run."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from prefill_router.errors import ConfigError
from prefill_router.router.storage import FILES, save_router

if TYPE_CHECKING:
    from prefill_router.router.router import Router


def push(router: "Router", repo_id: str, *, private: bool, token: str | None) -> str:
    """Upload a router's folder in one commit; returns the commit's address."""
    api = HfApi(token=token)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "router"
        save_router(router, folder)
        try:
            api.create_repo(repo_id, private=private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repo_id, folder_path=folder, commit_message="A prefill router"
            )
        except (HfHubHTTPError, HFValidationError, OSError) as error:
            raise ConfigError(
                f"can't upload to {repo_id!r}: {error}; check the name and your token"
            ) from None
    return str(commit)


def fetch(name: str, *, revision: str | None, token: str | None) -> Path:
    """The folder of a router: `name` itself where it is one, else downloaded from the hub."""
    if Path(name).is_dir():
        return Path(name)
    try:
        return Path(
            snapshot_download(name, revision=revision, token=token, allow_patterns=list(FILES))
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigError(
            f"{name!r} is no local folder and can't be had from the hub: {error}"
        ) from None
