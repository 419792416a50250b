"""Where states are read: layers and poolings."""

from dataclasses import dataclass
from typing import Literal, final, get_args

from prefill_router.errors import ConfigError

Pooling = Literal["last", "mean", "rest", "own"]
_DIGITS = 6
POOLINGS: tuple[Pooling, ...] = ("last", "mean", "rest")
"""The poolings of hidden states, without `own`, an encoder's own output vector."""
DEFAULT_POOLINGS: tuple[Pooling, ...] = ("last", "mean")
"""The poolings that are stored and selected from by default."""


@final
@dataclass(frozen=True, order=True)
class Site:
    """Where in the encoder a state is read.

    Attributes:
        layer: 0 is the embedding, l the residual stream after block l, before the final norm.
        pooling: `last` non-padding token, `mean` over the non-padding tokens, or the mean over the
            `rest` of them after the first. The first is an attention sink with enormous states in
            causal networks. A prompt's only token is its own rest. `own` is the vector that an
            encoder outputs for the whole prompt, at layer 1 by convention.
    """

    layer: int
    pooling: Pooling

    @property
    def name(self) -> str:
        """The name, such as `last.17`."""
        return f"{self.pooling}.{self.layer}"

    @classmethod
    def parse(cls, name: str) -> "Site":
        """The site of a name such as `last.17`.

        Raises:
            ConfigError: The text isn't the name of a site.
        """
        prefix, _, layer = name.partition(".")
        poolings: tuple[Pooling, ...] = get_args(Pooling)
        pooling = next((p for p in poolings if p == prefix), None)
        if pooling is None or not layer.isdecimal() or len(layer) > _DIGITS:
            raise ConfigError(f"{name!r} isn't a site; write it like last.17 or mean.17")
        return cls(int(layer), pooling)
