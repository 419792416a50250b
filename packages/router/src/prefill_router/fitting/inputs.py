"""What a fit learns from: states, soft labels, descriptions, and out-of-fold predictions.

The states that a recipe's features read come from stores, or are encoded now. A judge's soft labels
are mixed into the train labels (section 3.2 of the paper). Descriptions of targets and of groups
of queries are embedded by an encoder.

A recipe's cascade is learned from out-of-fold predictions for train rows. They also correct
train labels that may be wrong: these are replaced by how probably they are right. A judge's
label y that is wrong with the probability e says by Bayes' rule, given the probability p that was
predicted without it, that the answer is correct with the probability

    p (1 - e) / (p (1 - e) + (1 - p) e)     for y = 1, and with e in the place of 1 - e for y = 0.

The predictions are out of fold, so that no label confirms itself. They are learned from the labels
as they are, and corrected for their errors. Soft labels train any predictor; exact labels stay as
they are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, final

import numpy as np
import polars as pl
from jaxtyping import Float64, Int64
from numpy.typing import NDArray
from polars.exceptions import PolarsError

from prefill_router.activations import Activations, Site
from prefill_router.calibration import CalibratorFit, CalibratorKind, fit_calibrator
from prefill_router.data import Query, RoutingDataset, stratified_folds
from prefill_router.encoders import (
    OWN,
    default_sites,
    gives_own_vectors,
    load_encoder,
    recorded_name,
)
from prefill_router.errors import DataError, FitError, FormatError
from prefill_router.features import Need
from prefill_router.files import default_cache
from prefill_router.fitting.recipe import SoftLabels
from prefill_router.policy import FrugalCascade, Policy
from prefill_router.predictors import (
    Correctness,
    Descriptions,
    Examples,
    PredictorConfig,
    out_of_fold,
)
from prefill_router.progress import Progress
from prefill_router.router import EncoderSources, encode_cached
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
    gathered = list(stores)
    for need in needs:
        if not any(_meets_need(store, need, dataset) for store in gathered):
            gathered.append(
                _encode_need(need, dataset, sources or EncoderSources(), cache, progress)
            )
    return tuple(gathered)


def _meets_need(store: Activations, need: Need, dataset: RoutingDataset) -> bool:
    return (
        store.provenance.encoder == recorded_name(need.encoder)
        and set(need.sites or ()) <= set(store.sites)
        and not store.missing(dataset.prompt_keys)
    )


def _encode_need(
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
    return encode_cached(
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
    scores = _tabulate_scores(train, soft)
    has_both = ~np.isnan(scores) & ~np.isnan(train.correct)
    if not has_both.any():
        raise FormatError(
            "it scores no answer of the train part; use the ids and targets of the dataset",
            file=soft.file,
        )
    return np.where(
        has_both, (1 - soft.weight) * train.correct + soft.weight * scores, train.correct
    )


def _tabulate_scores(
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


FOLDS = 5


@final
@dataclass(frozen=True, eq=False)
class OutOfFold:
    """Predictions for train rows by predictors that weren't fitted on them.

    Attributes:
        correctness: Probabilities; NaN for a fold where no predictor can be fitted on the others.
        folds: The fold of each row.
    """

    correctness: Float64[NDArray[np.float64], "query target"]
    folds: Int64[NDArray[np.int64], " query"]


def folds_of(
    train: RoutingDataset, *, seed: int, count: int = FOLDS
) -> Int64[NDArray[np.int64], " query"]:
    """The fold of each train row, stratified; all 0 with fewer distinct prompts than folds."""
    try:
        return stratified_folds(train, count=count, seed=seed)
    except DataError:
        return np.zeros(len(train), dtype=np.int64)


def learn_cascade(
    config: FrugalCascade,
    correctness: Correctness,
    unseen: OutOfFold,
    *,
    train: RoutingDataset,
    estimated_cost: NDArray[np.float64],
) -> tuple[Policy, Sequence[str]]:
    """The learned cascade, and notes on it.

    Args:
        config: The recipe's options for it.
        correctness: Out-of-fold predictions for train rows, shrunk as in the router.
        unseen: The same predictions before shrinkage, with the folds.
        train: The train rows.
        estimated_cost: For answers whose cost wasn't observed, US dollars, [query, target].

    Raises:
        FitError: There is nothing to learn from, or no target is within the budget.
    """
    if np.isnan(unseen.correctness).any():
        raise FitError(
            "a cascade is learned from out-of-fold predictions, and some fold has too few queries "
            "or labels; score more answers"
        )
    paid = np.where(np.isnan(train.observed_cost), estimated_cost, train.observed_cost)
    cascade_fit = config.fit(
        correctness,
        train.correct,
        paid,
        train.output_tokens,
        unseen.folds,
        targets=train.pool.names,
    )
    return cascade_fit.policy, cascade_fit.notes


Table = Float64[NDArray[np.float64], "query target"]
_EDGE: Final = 0.02
"""Corrected predictions are kept this far from 0 and 1, where the correction is unsure."""
_LEAST: Final = 1e-6
_ROUNDS: Final = 3
"""Rounds in which a calibrator and the labels that it learns from are fitted in turn."""


def posterior(label: Table, error: Table, prior: Table) -> Table:
    """The probability that each answer is correct, given its label and a prior.

    Args:
        label: Labels in [0, 1]; NaN stays NaN.
        error: The probability that each is wrong, below 0.5; 0 or NaN where it is exact.
        prior: The probability without the label.
    """
    wrong = np.nan_to_num(error)

    def posterior_of(chance: Table) -> Table:
        right = prior * chance
        return right / (right + (1 - prior) * (1 - chance))

    erring = wrong > 0
    wrong = np.where(erring, wrong, 0.25)  # any error: the result is used for erring labels only
    soft = label * posterior_of(1 - wrong) + (1 - label) * posterior_of(wrong)
    return np.where(erring, soft, label)


def correct_labels(label: Table, error: Table | None) -> Table:
    """Labels that are right on average; single ones may lie outside [0, 1]."""
    if error is None:
        return label
    wrong = np.nan_to_num(error)
    return (label - wrong) / (1 - 2 * wrong)


def posterior_labels(
    config: PredictorConfig,
    examples: Examples,
    error: Table | None,
    *,
    seed: int,
    progress: Progress,
) -> Table:
    """The labels to train on.

    Args:
        config: The predictor's options.
        examples: Its train rows, with the labels as they are.
        error: The probability that each is wrong; NaN or 0 where it is exact, None where all are.
        seed: The seed of the fits.
        progress: Shows the progress.

    Raises:
        MissingExtraError: A package isn't installed.
    """
    if error is None or not (examples.present & (np.nan_to_num(error) > 0)).any():
        return examples.correct
    count = np.maximum(examples.present.sum(axis=0), 1)
    mean = np.where(examples.present, np.nan_to_num(error), 0).sum(axis=0) / count
    rates = np.clip((examples.base_rates - mean) / (1 - 2 * mean), _EDGE, 1 - _EDGE)
    predictions = out_of_fold(config, examples, seed=seed, progress=progress)
    prior = np.clip((predictions - mean) / (1 - 2 * mean), _EDGE, 1 - _EDGE)
    return posterior(examples.correct, error, np.where(np.isnan(predictions), rates, prior))


def calibrate(kind: CalibratorKind, predicted: Table, part: RoutingDataset) -> CalibratorFit:
    """A calibrator; from labels that may be wrong by expectation maximisation.

    Args:
        kind: The kind of calibrator.
        predicted: Predictions for the calibration part.
        part: The calibration part.
    """
    label, error, names = part.correct, part.label_error, part.pool.names
    if error is None:
        return fit_calibrator(kind, predicted, label, names)
    prior = predicted
    for _ in range(_ROUNDS):
        inside = np.clip(prior, _LEAST, 1 - _LEAST)
        fitted = fit_calibrator(kind, predicted, posterior(label, error, inside), names)
        prior = fitted.calibrator.calibrate(predicted)
    return fitted


def error_notes(train: RoutingDataset) -> tuple[str, ...]:
    """A note on how many of the labels are wrong, if any."""
    if train.label_error is None or np.isnan(train.label_error).all():
        return ()
    mean = float(np.nan_to_num(train.label_error)[~np.isnan(train.correct)].mean())
    return (f"{100 * mean:.1f} % of the train labels are expected to be wrong",)
