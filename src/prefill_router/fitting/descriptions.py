"""What is said of targets and of groups of queries, as an encoder reads it."""

from collections.abc import Sequence

import numpy as np

from prefill_router.activations import Site
from prefill_router.data import Query
from prefill_router.encoders import OWN, gives_own_vectors, load_encoder
from prefill_router.predictors.fitted import Descriptions
from prefill_router.targets import Pool, Target


def describe(pool: Pool, groups: Sequence[str], encoder: str) -> Descriptions:
    """The texts' embeddings.

    Args:
        pool: Each target is told by its name and prices.
        groups: The benchmarks or domains of queries, each told by its name.
        encoder: As `encoders.load_encoder` takes it.

    Raises:
        ConfigError: The encoder isn't found.
        MissingExtraError: A package that it needs isn't installed.
    """
    names = list(dict.fromkeys(groups))
    texts = [*map(target_text, pool), *map(group_text, names)]
    queries = [Query(f"text {i}", text) for i, text in enumerate(texts)]
    loaded = load_encoder(encoder)
    made_by = loaded.provenance
    site = OWN if gives_own_vectors(made_by.encoder) else Site(made_by.num_layers, "mean")
    store = loaded.encode(queries, [site])
    keys = [prompt.key for prompt in loaded.tokenize(queries)]
    vectors = store.read(site, keys).astype(np.float64)
    count = len(pool)
    return Descriptions(vectors[:count], dict(zip(names, vectors[count:], strict=True)))


def target_text(target: Target) -> str:
    """What is said of a target."""
    if not target.has_price:
        return f"The language model {target.name}."
    return (
        f"The language model {target.name}, which costs {target.input_price:g} dollars per million "
        f"tokens that it reads and {target.output_price:g} per million that it writes."
    )


def group_text(group: str) -> str:
    """What is said of a group of queries."""
    return f"Questions of {group}." if group else "Questions of any kind."
