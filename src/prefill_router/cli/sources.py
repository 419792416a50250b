"""The option that says where local encoders lie."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefill_router.router import EncoderSources


def sources(folders: Sequence[Path] | None) -> "EncoderSources":
    """Where encoders are found: these folders, each under its own name."""
    from prefill_router.router import EncoderSources

    return EncoderSources(folders={path.resolve().name: path for path in folders or ()})
