"""What is asked of the functions that load encoders."""

from dataclasses import dataclass
from typing import final

from prefill_router.activations import Provenance


@final
@dataclass(frozen=True, kw_only=True)
class Request:
    """What `load_encoder` was asked for, where it is, and what its provenance must be."""

    name: str
    source: str
    is_local: bool
    revision: str | None
    template: str
    max_tokens: int | None
    dtype: str | None
    device: str | None
    layers: tuple[int, ...] | None
    batch_tokens: int | None
    trust_remote_code: bool
    expected: Provenance | None
