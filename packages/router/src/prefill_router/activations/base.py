"""Hidden states of prompts, looked up by content key: their sites, provenance and rounding.

A predictor that was fitted on stored states must see the same numbers when a request is encoded at
run time. So the states of both are rounded to the same type, bfloat16 by default. bfloat16 has the
range of float32. float16 ends at 65,504. Larger states, which residual streams can have, are
refused.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Float32, Int
from numpy.typing import NDArray

from prefill_router.activations.sites import Site
from prefill_router.errors import ProvenanceError, StoreError
from prefill_router.short_repr import short_repr

Rounding = Literal["bfloat16", "float16", "float32"]
ROUNDINGS: tuple[Rounding, ...] = ("bfloat16", "float16", "float32")
ITEM_BYTES: dict[Rounding, int] = {"bfloat16": 2, "float16": 2, "float32": 4}
SAFETENSORS_NAME: dict[Rounding, str] = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}

_LOW_HALF = np.uint32(0x7FFF)
_SHIFT = np.uint32(16)
States = Float32[NDArray[np.float32], "row hidden"]


def pack(states: States, rounding: Rounding) -> NDArray[Any]:
    """States in the type they are stored in; bfloat16, which NumPy lacks, as uint16 bits.

    Raises:
        StoreError: A state is beyond the type's range.
    """
    if rounding == "float32":
        return states.astype("<f4")
    if rounding == "float16":
        with np.errstate(over="ignore"):
            packed: NDArray[Any] = states.astype("<f2")
        overflow = np.isinf(packed)
    else:
        packed = _to_bfloat16(states)
        overflow = (packed & 0x7FFF) == 0x7F80
    count = int((overflow & np.isfinite(states)).sum())
    if count:
        raise StoreError(
            f"{count} numbers, up to {np.abs(states).max():.6g}, are beyond the range of "
            f"{rounding}; store them as float32 or bfloat16"
        )
    return packed


def unpack(content: bytes | memoryview, rounding: Rounding, hidden: int) -> States:
    """The float32 states in packed bytes, one row per prompt."""
    if rounding == "bfloat16":
        wide = np.frombuffer(content, dtype="<u2").astype(np.uint32) << _SHIFT
        return wide.view(np.float32).reshape(-1, hidden)
    packed = np.frombuffer(content, dtype="<f2" if rounding == "float16" else "<f4")
    return packed.astype(np.float32).reshape(-1, hidden)


def round_states(states: States, rounding: Rounding) -> States:
    """The states as a store of this type returns them.

    Raises:
        StoreError: A state is beyond the type's range.
    """
    return unpack(pack(states, rounding).tobytes(), rounding, states.shape[1])


def _to_bfloat16(states: States) -> NDArray[np.uint16]:
    """Round to nearest, ties to even; finite numbers only."""
    bits = np.ascontiguousarray(states).view(np.uint32)
    return ((bits + _LOW_HALF + ((bits >> _SHIFT) & np.uint32(1))) >> _SHIFT).astype("<u2")


@final
@dataclass(frozen=True, kw_only=True)
class Provenance:
    """How states were made. States with different provenances are never mixed.

    Attributes:
        encoder: A hub id, the name of a packaged encoder, or the name of a local folder. With the
            prefix `sentence:`, `signals:` or `endpoint:` where it outputs one vector per prompt.
        revision: The hub's commit, a digest of the local weights and configuration, or the name
            that an endpoint gives its model.
        template: Whether prompts went through the tokenizer's chat template.
        template_hash: Digest of the template and the tokenizer, which determine the tokens.
        max_tokens: The limit to which longer prompts are truncated, in the middle; for `sentence:`
            at the end.
        dtype: The type that states are computed in: `float32`, `bfloat16` or `float16`.
        num_layers: Blocks of the whole encoder, including those that aren't run.
        hidden_size: Width of the residual stream.
        quantisation: The type that most of a quantised file's weights have, such as `Q4_1`.
        computed_by: The program that computed the states, such as `vllm`; None for this package. It
            is recorded and not compared: as on another processor, the rounding differs.
        packed_by: The attention kernel that kept packed prompts apart, such as `torch`; None where
            prompts were padded. It is recorded and not compared, since only the rounding differs.
    """

    encoder: str
    revision: str
    template: Literal["chat", "plain"]
    template_hash: str
    max_tokens: int
    dtype: str
    num_layers: int
    hidden_size: int
    quantisation: str | None = None
    computed_by: str | None = field(default=None, compare=False)
    packed_by: str | None = field(default=None, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without those that are None."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def require(self, other: "Provenance", *, what: str) -> None:
        """Check that `other` is the same.

        Args:
            other: The provenance of `what`.
            what: What is checked, for error messages, such as `the store /data/states`.

        Raises:
            ProvenanceError: A field differs; the message lists every difference.
        """
        names = [item.name for item in fields(self) if item.compare]
        differing = [
            f"{name} is {getattr(other, name)!r}, not {getattr(self, name)!r}"
            for name in names
            if getattr(other, name) != getattr(self, name)
        ]
        if differing:
            raise ProvenanceError(
                f"{what} was made differently: {'; '.join(differing)}; encode the queries again "
                f"with the encoder {self.encoder!r} and these settings"
            )


class Activations(ABC):
    """States of prompts, by site and by the prompts' content keys (`data.prompt_key`)."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name for it in messages, such as `the store /data/states`."""

    @property
    @abstractmethod
    def provenance(self) -> Provenance:
        """How the states were made."""

    @property
    @abstractmethod
    def sites(self) -> tuple[Site, ...]:
        """The sites whose states are available, sorted."""

    @property
    def rounding(self) -> Rounding:
        """The type that the states were rounded to; states of requests are rounded to it too."""
        return "float32"

    @abstractmethod
    def missing(self, keys: Iterable[str]) -> list[str]:
        """The keys among these whose states are missing, in order."""

    @abstractmethod
    def read(self, site: Site, keys: Sequence[str]) -> Float32[NDArray[np.float32], "query hidden"]:
        """The states of these prompts at a site, in the order of the keys; keys may repeat.

        Raises:
            StoreError: Some states are missing.
            CorruptError: The content on disk isn't what was written.
        """

    @abstractmethod
    def tokens(self, keys: Sequence[str]) -> Int[NDArray[np.int64], " query"]:
        """The number of tokens of each prompt, with the template and before truncation."""

    def require(self, site: Site, keys: Iterable[str]) -> None:
        """Check that the states of these keys at a site are available.

        Raises:
            ProvenanceError: The site is missing.
            StoreError: The states of some keys are missing.
        """
        if site not in self.sites:
            names = ", ".join(s.name for s in self.sites)
            raise ProvenanceError(f"{self.name} lacks the site {site.name}; it holds {names}")
        key_list = list(keys)
        lacking = self.missing(key_list)
        if lacking:
            raise StoreError(
                f"{self.name} lacks the states of {len(lacking)} of {len(key_list)} queries; "
                "finish it with: prefill-router encode"
            )


@short_repr
@final
@dataclass(frozen=True, eq=False)
class MemoryActivations(Activations):
    """States in memory, such as those of a request that was just encoded.

    Attributes:
        made_by: How the states were made.
        keys: The content key of each row, distinct.
        states: For each site, one row per key.
        counts: The number of tokens of each row's prompt.
        rounded_to: The type that the states were rounded to (see `Activations.rounding`).
    """

    made_by: Provenance
    keys: tuple[str, ...]
    states: Mapping[Site, Float32[NDArray[np.float32], "row hidden"]]
    counts: Int[NDArray[np.int64], " row"]
    rounded_to: Rounding = "float32"

    @property
    def rounding(self) -> Rounding:
        """The type that the states were rounded to."""
        return self.rounded_to

    @property
    def name(self) -> str:
        """The name for it in messages."""
        return "the encoded batch"

    @property
    def provenance(self) -> Provenance:
        """How the states were made."""
        return self.made_by

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites whose states are available, sorted."""
        return tuple(sorted(self.states))

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return {key: row for row, key in enumerate(self.keys)}

    def missing(self, keys: Iterable[str]) -> list[str]:
        """The keys among these whose states are missing, in order."""
        return [key for key in keys if key not in self._row_of]

    def read(self, site: Site, keys: Sequence[str]) -> Float32[NDArray[np.float32], "query hidden"]:
        """The states of these prompts at a site, in the order of the keys."""
        self.require(site, keys)
        return self.states[site][[self._row_of[key] for key in keys]]

    def tokens(self, keys: Sequence[str]) -> Int[NDArray[np.int64], " query"]:
        """The number of tokens of each prompt, with the template and before truncation."""
        return self.counts[[self._row_of[key] for key in keys]]
