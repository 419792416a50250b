"""What identifies an encoder's files: the content, not the name.

A local folder's revision is the SHA-256 of its configuration, tokenizer, code and weights. Weights
of more than a gibibyte would take seconds each time, so of those the size, the first mebibyte
(which holds the names and shapes of safetensors) and 64 mebibytes spread evenly are taken, and the
revision says `sampled`: it tells fine-tunings apart, but is no proof against somebody who changes
single weights on purpose.
"""

import hashlib
from pathlib import Path
from typing import Any

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
    """Digest of a local encoder: `sha256:...`, or `sampled:...` for big ones."""
    weights = [path for pattern in _WEIGHTS for path in sorted(folder.glob(pattern))]
    code = sorted(folder.glob("*.py"))  # may run where the caller trusts it
    small = [*(folder / name for name in ("config.json", *TOKENIZER_FILES)), *code]
    return _revision(folder, [path for path in small if path.is_file()], weights)


def tree_revision(folder: Path) -> str:
    """Digest of a local encoder whose parts lie in folders below, such as `1_Pooling`."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_file() and _counts(path, folder)]
    weights = [path for path in found if path.suffix in _WEIGHT_TYPES]
    return _revision(folder, [path for path in found if path not in weights], weights)


def _counts(path: Path, folder: Path) -> bool:
    is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not is_hidden and path.suffix in (*_SMALL_TYPES, *_WEIGHT_TYPES)


def _revision(folder: Path, small: list[Path], weights: list[Path]) -> str:
    is_whole = sum(path.stat().st_size for path in weights) <= _WHOLE_BYTES
    digest = hashlib.sha256()
    for path in [*small, *weights]:
        content = _whole(path) if is_whole or path in small else _sampled(path)
        digest.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return f"{'sha256' if is_whole else 'sampled'}:{digest.hexdigest()[:40]}"


def template_digest(template: str, chat_template: object, files: list[Path], tokenizer: Any) -> str:
    """Digest of how a prompt becomes tokens: the template that is used and the tokenizer."""
    digest = hashlib.sha256(template.encode())
    if template == "chat":
        digest.update(str(chat_template).encode())
    kept = [path for path in files if path.suffix != ".jinja"]
    for path in kept:
        digest.update(f"\n{path.name} {_whole(path)}".encode())
    if not kept:
        digest.update(repr(sorted(tokenizer.get_vocab().items())).encode())
    return digest.hexdigest()[:40]


def _whole(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sampled(path: Path) -> str:
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for number in range(_BLOCKS + 1):
            file.seek(max(size - _BLOCK_BYTES, 0) * number // _BLOCKS)
            digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()
