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
_WEIGHTS = ("*.safetensors", "*.bin")
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
    is_whole = sum(path.stat().st_size for path in weights) <= _WHOLE_BYTES
    digest = hashlib.sha256()
    for path in [*small, *weights]:
        if path.is_file():
            whole = is_whole or path in small
            content = _whole(path) if whole else _sampled(path)
            digest.update(f"{path.name} {content}\n".encode())
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
