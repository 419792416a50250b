"""A feature extractor as plain values and arrays, and back, checking everything."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prefill_router.activations import Provenance, Rounding, Site
from prefill_router.errors import ConfigError, CorruptError
from prefill_router.features.base import EncoderStates
from prefill_router.features.block import Block
from prefill_router.reduction import Reducer

if TYPE_CHECKING:
    from prefill_router.features.extractor import FeatureExtractor

_Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(gt=0)]


class Strict(BaseModel):
    """Plain values, with nothing left out, added or converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SavedStates(Strict):
    """A kind of states, as it is saved."""

    encoder: str
    revision: str
    template: Literal["chat", "plain"]
    template_hash: str
    max_tokens: Positive
    dtype: str
    num_layers: Positive
    hidden_size: Positive
    rounding: Rounding

    @classmethod
    def of(cls, source: EncoderStates) -> dict[str, Any]:
        """Its plain values."""
        return {**source.provenance.to_dict(), "rounding": source.rounding}

    def source(self) -> EncoderStates:
        """The kind of states that was saved."""
        values = self.model_dump()
        rounding = values.pop("rounding")
        return EncoderStates(Provenance(**values), rounding)


class _Block(Strict):
    encoder: _Count
    site: str
    dim: Positive


class _Saved(Strict):
    kind: Literal["prefill"]
    targets: list[str]
    encoders: list[SavedStates]
    blocks: list[_Block]
    block_of: list[_Count]
    selection: dict[str, Any]


def to_dict(extractor: "FeatureExtractor") -> dict[str, Any]:
    """Plain values for JSON."""
    sources = extractor.sources
    return {
        "kind": extractor.kind,
        "targets": list(extractor.targets),
        "encoders": [SavedStates.of(source) for source in sources],
        "blocks": [
            {"encoder": sources.index(b.source), "site": b.site.name, "dim": b.dim}
            for b in extractor.blocks
        ],
        "block_of": list(extractor.block_of),
        "selection": dict(extractor.selection),
    }


def from_dict(config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> "FeatureExtractor":
    """The extractor of `to_dict` and `FeatureExtractor.tensors`.

    Raises:
        CorruptError: They are incomplete or contradict each other.
    """
    from prefill_router.features.extractor import FeatureExtractor

    try:
        saved = _Saved.model_validate(dict(config))
        sources = [encoder.source() for encoder in saved.encoders]
        blocks = tuple(
            _block(sources, block, _under(tensors, f"block{i}."))
            for i, block in enumerate(saved.blocks)
        )
        extractor = FeatureExtractor(
            tuple(saved.targets), blocks, tuple(saved.block_of), saved.selection
        )
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise CorruptError(f"the router's features: {place}: {first['msg']}") from None
    except ConfigError as error:
        raise CorruptError(f"the router's features don't hold together: {error}") from None
    surplus = set(tensors) - set(extractor.tensors())
    if surplus:
        raise CorruptError(f"the router's features have the unknown arrays {sorted(surplus)}")
    return extractor


def _block(sources: list[EncoderStates], block: _Block, tensors: dict[str, NDArray[Any]]) -> Block:
    if block.encoder >= len(sources):
        raise ConfigError(f"a block is of encoder {block.encoder}; there are {len(sources)}")
    source, site = sources[block.encoder], Site.parse(block.site)
    if site.layer > source.provenance.num_layers:
        raise ConfigError(
            f"a block reads {site.name}; the encoder has {source.provenance.num_layers} layers"
        )
    hidden = source.provenance.hidden_size
    return Block(source, site, Reducer.from_tensors(tensors, hidden=hidden, dim=block.dim))


def _under(tensors: Mapping[str, NDArray[Any]], start: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(start): v for name, v in tensors.items() if name.startswith(start)}
