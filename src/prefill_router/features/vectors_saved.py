"""Where vectors are read, as plain values, and back, checking everything."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prefill_router.activations import Provenance, Rounding, Site
from prefill_router.errors import ConfigError, CorruptError
from prefill_router.features.base import EncoderStates
from prefill_router.features.vectors import VectorSource

_Positive = Annotated[int, Field(gt=0)]


class _Saved(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    encoder: str
    revision: str
    template: Literal["chat", "plain"]
    template_hash: str
    max_tokens: _Positive
    dtype: str
    num_layers: _Positive
    hidden_size: _Positive
    rounding: Rounding
    site: str
    normalise: bool


def source_to_dict(source: VectorSource) -> dict[str, Any]:
    """Plain values for JSON."""
    states = source.source
    return {
        **states.provenance.to_dict(),
        "rounding": states.rounding,
        "site": source.site.name,
        "normalise": source.normalise,
    }


def source_from_dict(config: Mapping[str, Any]) -> VectorSource:
    """The source of `source_to_dict`.

    Raises:
        CorruptError: A value is missing, unknown or of another type, or the site is none.
    """
    try:
        values = _Saved.model_validate(dict(config)).model_dump()
        site, normalise = Site.parse(values.pop("site")), values.pop("normalise")
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise CorruptError(f"the features' encoder: {place}: {first['msg']}") from None
    except ConfigError as error:
        raise CorruptError(f"the features' encoder: {error}") from None
    rounding = values.pop("rounding")
    provenance = Provenance(**values)
    if site.layer > provenance.num_layers:
        raise CorruptError(
            f"the features read {site.name}; the encoder has {provenance.num_layers} layers"
        )
    return VectorSource(EncoderStates(provenance, rounding), site, normalise)
