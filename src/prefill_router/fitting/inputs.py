"""The inputs of a fit besides its dataset: states, soft labels, and descriptions of targets.

The states that a recipe's features read come from stores, or are encoded now. A judge's soft labels
are mixed into the training labels (section 3.2 of the paper). Descriptions of targets and of groups
of queries are embedded by an encoder.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Float64
from numpy.typing import NDArray
from polars.exceptions import PolarsError

from prefill_router.activations import Activations, Site
from prefill_router.data import Query, RoutingDataset
from prefill_router.encoders import (
    OWN,
    default_sites,
    gives_own_vectors,
    load_encoder,
    recorded_name,
)
from prefill_router.errors import FormatError
from prefill_router.features import Need
from prefill_router.files import default_cache
from prefill_router.fitting.recipe import SoftLabels
from prefill_router.predictors import Descriptions
from prefill_router.progress import Progress
from prefill_router.router import EncoderSources, cached_states
from prefill_router.targets import Pool, Target


def gather(
    needs: Sequence[Need],
    dataset: RoutingDataset,
    stores: Sequence[Activations],
    *,
    sources: EncoderSources | None = None,
    cache: Path | None = None,
    progress: Progress,
) -> tuple[Activations, ...]:
    """The given stores, and new ones for needs that none of them meets.

    Args:
        needs: The states that are needed.
        dataset: The queries.
        stores: The existing stores.
        sources: The paths of encoders, by name.
        cache: The folder for states that are encoded now; the user's cache if not given.
        progress: Shows the progress of encoding.

    Raises:
        ConfigError: An encoder isn't found.
    """
    found = list(stores)
    for need in needs:
        if not any(_meets(store, need, dataset) for store in found):
            found.append(_encoded(need, dataset, sources or EncoderSources(), cache, progress))
    return tuple(found)


def _meets(store: Activations, need: Need, dataset: RoutingDataset) -> bool:
    return (
        store.provenance.encoder == recorded_name(need.encoder)
        and set(need.sites or ()) <= set(store.sites)
        and not store.missing(dataset.prompt_keys)
    )


def _encoded(
    need: Need,
    dataset: RoutingDataset,
    sources: EncoderSources,
    cache: Path | None,
    progress: Progress,
) -> Activations:
    by_name = {encoder.provenance.encoder: encoder for encoder in sources.loaded}
    encoder = by_name.get(recorded_name(need.encoder)) or load_encoder(
        sources.place_of(need.encoder) or need.encoder,
        device=sources.device,
        trust_remote_code=sources.trust_remote_code,
    )
    return cached_states(
        dataset,
        encoder,
        cache or default_cache(),
        sites=need.sites or default_sites(encoder.provenance),
        rounding="bfloat16",
        progress=progress,
    )


_COLUMNS = ("query_id", "target", "score")
_READERS: Mapping[str, Callable[[Path], pl.DataFrame]] = {
    ".csv": partial(pl.read_csv, infer_schema=False),  # an id such as 007 isn't a number
    ".jsonl": pl.read_ndjson,
    ".parquet": pl.read_parquet,
}


def mix_soft_labels(
    train: RoutingDataset, soft: SoftLabels
) -> Float64[NDArray[np.float64], "query target"]:
    """The labels of the train part, `(1 - weight) * label + weight * score` where both are known.

    Rows are joined by id; scores of other queries or targets are ignored, so those of the test part
    have no effect.

    Raises:
        FormatError: The file is missing or malformed, repeats a pair, scores none of these
            queries, or a score is outside [0, 1].
    """
    scores = _scores(train, soft)
    both = ~np.isnan(scores) & ~np.isnan(train.correct)
    if not both.any():
        raise FormatError(
            "it scores no answer of the train part; use the ids and targets of the dataset",
            file=soft.file,
        )
    return np.where(both, (1 - soft.weight) * train.correct + soft.weight * scores, train.correct)


def _scores(
    train: RoutingDataset, soft: SoftLabels
) -> Float64[NDArray[np.float64], "query target"]:
    frame = _read_scores(soft)
    row = {query_id: i for i, query_id in enumerate(train.query_ids)}
    column = {name: k for k, name in enumerate(train.pool.names)}
    table = np.full(train.correct.shape, np.nan)
    for query_id, target, score in frame.iter_rows():
        if query_id in row and target in column:
            cell = row[query_id], column[target]
            if not np.isnan(table[cell]):
                raise FormatError(f"scores {target!r} on {query_id!r} twice", file=soft.file)
            table[cell] = score
    return table


def _read_scores(soft: SoftLabels) -> pl.DataFrame:
    reader = _READERS.get(soft.file.suffix)
    if reader is None:
        raise FormatError(f"must end in one of {sorted(_READERS)}", file=soft.file)
    try:
        frame = reader(soft.file)
        lacking = [name for name in _COLUMNS if name not in frame.columns]
        if lacking:
            raise FormatError(f"lacks the columns {lacking}", file=soft.file)
        frame = frame.select(
            pl.col("query_id").cast(pl.String),
            pl.col("target").cast(pl.String),
            pl.col("score").cast(pl.Float64),
        ).drop_nulls()
    except (OSError, PolarsError) as error:
        raise FormatError(" ".join(str(error).split()), file=soft.file) from None
    outside = frame.filter(~pl.col("score").is_between(0, 1))
    if len(outside):
        raise FormatError(f"a score is {outside['score'][0]}; give 0 to 1", file=soft.file)
    return frame


def describe(pool: Pool, groups: Sequence[str], encoder: str) -> Descriptions:
    """Embeddings of descriptions of targets and of groups of queries.

    Args:
        pool: The targets; each is described by its name and prices.
        groups: The benchmarks or domains of queries; each is described by its name.
        encoder: The encoder's name, as for `encoders.load_encoder`.

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
    """The description of a target."""
    if not target.has_price:
        return f"The language model {target.name}."
    return (
        f"The language model {target.name}, which costs {target.input_price:g} dollars per million "
        f"tokens that it reads and {target.output_price:g} per million that it writes."
    )


def group_text(group: str) -> str:
    """The description of a group of queries."""
    return f"Questions of {group}." if group else "Questions of any kind."
