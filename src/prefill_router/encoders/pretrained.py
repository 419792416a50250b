"""What `transformers` finds of an encoder: its configuration, its tokenizer, its commit."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoTokenizer
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import cached_file, extract_commit_hash

from prefill_router.encoders import parts
from prefill_router.encoders.digest import TOKENIZER_FILES
from prefill_router.encoders.request import Request
from prefill_router.errors import ConfigError


def explained(request: Request) -> AbstractContextManager[None]:
    """Within it, what the loaders raise becomes a `ConfigError` in our own words."""
    return parts.explained(request, StrictDataclassError)


def prepare(request: Request) -> None:
    """Check what can be checked before anything is loaded, and have the loaders be quiet.

    Raises:
        ConfigError: A folder has a revision, or a batch no token.
    """
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    parts.check_files(request)


def config_and_tokenizer(request: Request) -> tuple[Any, Any]:
    """The network's configuration and its tokenizer, which pads on the right."""
    options = {"revision": request.revision, "trust_remote_code": request.trust_remote_code}
    config = AutoConfig.from_pretrained(request.source, **options)
    tokenizer = AutoTokenizer.from_pretrained(request.source, **options)
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        # Without its files a tokenizer is built all the same, and every text is unknown to it.
        raise ConfigError(
            f"the tokenizer of {request.source} has no vocabulary; add its files, such as "
            "tokenizer.json"
        )
    tokenizer.padding_side = "right"
    return config, tokenizer


def commit_of(request: Request, *names: str) -> str | None:
    """The hub's commit of what is asked for; None for a folder.

    Args:
        request: What is asked for.
        names: Files to tell it by, the first of them that is there.

    Raises:
        OSError: None of them is, or the hub can't be reached.
    """
    if request.is_local:
        return None
    for name in names:
        path = cached_file(
            request.source,
            name,
            revision=request.revision,
            _raise_exceptions_for_missing_entries=name == names[-1],
        )
        if path is not None:
            return extract_commit_hash(path, None)
    return None


def tokenizer_files(source: str, commit: str | None) -> list[Path]:
    """The files of a tokenizer that are there, in the order of `TOKENIZER_FILES`."""
    found = [
        cached_file(
            source,
            name,
            revision=commit,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        for name in TOKENIZER_FILES
    ]
    return [Path(path) for path in found if path is not None]
