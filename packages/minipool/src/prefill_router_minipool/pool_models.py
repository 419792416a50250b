"""The models of the tiny pool, the folders of their weights, and their prices."""

from collections.abc import Mapping
from pathlib import Path

from prefill_router.errors import ConfigError
from prefill_router.targets import Pool, Target

PRICES: Mapping[str, tuple[float, float]] = {
    "sprout": (0.02, 0.08),
    "abacus": (0.08, 0.32),
    "scribe": (0.12, 0.48),
    "almanac": (0.12, 0.48),
    "atlas": (0.40, 1.60),
}
"""US dollars per million input and output tokens: made up, and higher for larger models."""

NAMES = tuple(PRICES)
"""The targets, from the cheapest to the most expensive."""

ENCODER = "reader"
"""The model that is the encoder and not a target."""
ENCODER_FOLDER = Path(__file__).parent / "weights" / ENCODER
ROUTER_FOLDER = Path(__file__).parent / "router"
"""A fitted router of the pool."""

_PRICES_DATE = "2026-11-21"


def folder_of(name: str) -> Path:
    """The folder of a model's weights, as `transformers` and `load_encoder` read it.

    Raises:
        ConfigError: The pool has no such model.
    """
    if name not in (*NAMES, ENCODER):
        raise ConfigError(f"the tiny pool has no model {name!r}; it has {[*NAMES, ENCODER]}")
    return Path(__file__).parent / "weights" / name


def pool(base_url: str | None = None) -> Pool:
    """The tiny pool's targets.

    Args:
        base_url: The endpoint that serves them, such as `http://127.0.0.1:8123/v1`.
    """
    targets = tuple(
        Target(name=name, input_price=cost_in, output_price=cost_out, base_url=base_url)
        for name, (cost_in, cost_out) in PRICES.items()
    )
    return Pool(targets, _PRICES_DATE)
