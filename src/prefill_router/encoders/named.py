"""Names of encoders: of those whose hidden states are read, and of those that give a vector.

    NAME                       hidden states of a network: its layers, `last` and `mean`
    sentence:NAME              the embedding of a sentence-transformers model
    sentence:NAME#PROMPT       the same, each text behind the model's own prompt of that name
    endpoint:MODEL@BASE_URL    the embedding that an OpenAI-compatible endpoint gives
    signals:NAME               how a causal language model finds the text

The last three have one site, `own.1`.
"""

import re
from dataclasses import dataclass
from typing import Literal, final, get_args

from prefill_router.activations import POOLINGS, Provenance, Site
from prefill_router.encoders.base import candidate_layers

Scheme = Literal["sentence", "endpoint", "signals"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
OWN = Site(1, "own")
"""The site of an encoder that gives one vector of its own."""
_NAME = re.compile(rf"({'|'.join(SCHEMES)}):(.*)", re.DOTALL)


@final
@dataclass(frozen=True)
class EncoderName:
    """A name, taken apart.

    Attributes:
        scheme: None for an encoder whose hidden states are read.
        place: A hub id, a folder, the name of a packaged encoder, or MODEL@BASE_URL.
        prompt: The name of the model's own prompt; empty for its default.
    """

    scheme: Scheme | None
    place: str
    prompt: str = ""

    @classmethod
    def parse(cls, name: str) -> "EncoderName":
        """Take a name apart; any text is one."""
        found = _NAME.fullmatch(name)
        if found is None:
            return cls(None, name)
        scheme = next(scheme for scheme in SCHEMES if scheme == found[1])
        if scheme != "sentence":
            return cls(scheme, found[2])
        place, _, prompt = found[2].partition("#")
        return cls(scheme, place, prompt)

    def __str__(self) -> str:
        prefix = "" if self.scheme is None else f"{self.scheme}:"
        return f"{prefix}{self.place}{f'#{self.prompt}' if self.prompt else ''}"


def gives_own_vectors(name: str) -> bool:
    """Whether an encoder of this name gives one vector of its own, and has no layers to choose."""
    return EncoderName.parse(name).scheme is not None


def default_sites(provenance: Provenance) -> tuple[Site, ...]:
    """What is read of an encoder where nothing else is said.

    The vector itself of one that gives one; of others the candidates of layer selection: the layers
    from ceil(L/2) to L with both poolings.
    """
    if gives_own_vectors(provenance.encoder):
        return (OWN,)
    layers = candidate_layers(provenance.num_layers)
    return tuple(Site(layer, pooling) for layer in layers for pooling in POOLINGS)
