"""Fits a network on the text."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Float64
from numpy.typing import NDArray
from scipy.special import logit

from prefill_router.data import RoutingDataset
from prefill_router.encoders import load_encoder
from prefill_router.encoders.hub import HubEncoder
from prefill_router.errors import ConfigError, FitError
from prefill_router.features.text_network.adapted import AdaptedNetwork
from prefill_router.features.text_network.config import TextNetworkConfig
from prefill_router.features.text_network.family import Adaption, TextNetwork
from prefill_router.features.text_network.training import Rows, Texts, Tuned, steps_of, tune
from prefill_router.progress import Progress

PerTarget = Float64[NDArray[np.float64], " target"]


@final
@dataclass(frozen=True, eq=False)
class _Labels:
    """The labels of the train part.

    Attributes:
        correct: NaN where missing, and in the columns of targets that can't be learned.
        learned: Which targets have two different labels.
        logits: Of each target's share of right answers, by the rule of succession.
        notes: Which targets can't be learned.
    """

    correct: Float64[NDArray[np.float64], "query target"]
    learned: Bool[NDArray[np.bool_], " target"]
    logits: PerTarget
    notes: tuple[str, ...]


def fit_text_network(
    train: RoutingDataset, config: TextNetworkConfig, *, seed: int, progress: Progress
) -> TextNetwork:
    """Tune a network on the train part.

    Queries without a usable label are left out. A target whose labels are all the same, or all
    missing, gets the logit of its share of right answers.

    Raises:
        ConfigError: The network can't be loaded, or an option doesn't suit it.
        FitError: There is nothing to learn from, or the losses aren't finite.
        MissingExtraError: peft isn't installed.
    """
    labels = _labels(train)
    encoder = load_encoder(
        config.network, revision=config.revision, max_tokens=config.max_tokens, dtype="float32"
    )
    if not isinstance(encoder, HubEncoder):
        raise ConfigError(f"the network {config.network!r} can't be tuned; name a hub id or folder")
    shared = config.mode == "shared"
    network = AdaptedNetwork(
        encoder,
        outputs=len(train.pool.names) if shared else 1,
        pool=config.pool,
        modules=config.modules,
        rank=config.rank,
        alpha=config.alpha,
        dropout=config.dropout,
    )
    texts = _texts(train, labels, encoder, config, seed)
    tuned = (_tune_shared if shared else _tune_each)(network, texts, labels, config, seed, progress)
    return TextNetwork(
        names=train.pool.names,
        made_by=encoder.provenance,
        mode=config.mode,
        pool=config.pool,
        adaption=Adaption.of(network, rank=config.rank, alpha=config.alpha),
        arrays={name: np.stack([t.arrays[name] for t in tuned]) for name in tuned[0].arrays},
        report={"networks": [t.to_dict() for t in tuned], "notes": list(labels.notes)},
        source=config.network,
    )


def _labels(train: RoutingDataset) -> _Labels:
    correct = np.asarray(train.correct, dtype=np.float64)
    present = ~np.isnan(correct)
    low = np.where(present, correct, np.inf).min(axis=0, initial=np.inf)
    high = np.where(present, correct, -np.inf).max(axis=0, initial=-np.inf)
    learned = np.asarray(low < high)
    if not learned.any():
        raise FitError(
            "no target has two different labels, so there is nothing to learn; "
            "add queries that a target answers correctly and queries that it doesn't"
        )
    counts, sums = present.sum(axis=0), np.nansum(correct, axis=0)
    none = counts == 0
    rates = np.where(none, sums.sum() + 1, sums + 1) / np.where(none, counts.sum() + 2, counts + 2)
    notes = [
        f"{train.pool.names[i]} can't be learned: it lacks two different labels; "
        f"it is given {rates[i]:.3f}"
        for i in np.flatnonzero(~learned).tolist()
    ]
    kept = np.where(learned, correct, np.nan)
    return _Labels(kept, learned, np.asarray(logit(rates)), tuple(notes))


def _texts(
    train: RoutingDataset,
    labels: _Labels,
    encoder: HubEncoder,
    config: TextNetworkConfig,
    seed: int,
) -> Texts:
    """The rows with a label, in an order that the dataset's doesn't change."""
    keys = train.prompt_keys
    rows = np.flatnonzero(~np.isnan(labels.correct).all(axis=1)).tolist()

    def content(row: int) -> tuple[str, bytes]:
        return keys[row], np.nan_to_num(labels.correct[row], nan=-1.0).tobytes()

    rows.sort(key=content)
    prompts = encoder.tokenize([train.queries[row] for row in rows])
    fit, held = _hold_out([keys[row] for row in rows], config.validation, seed)
    return Texts(prompts, labels.correct[rows], fit, held)


def _hold_out(keys: list[str], share: float, seed: int) -> tuple[Rows, Rows]:
    """The rows to fit on and to hold out; equal prompts stay together, a single one does both."""
    distinct = sorted(set(keys))
    everything = np.arange(len(keys))
    if len(distinct) == 1:
        return everything, everything
    count = min(max(round(share * len(distinct)), 1), len(distinct) - 1)
    drawn = np.random.default_rng(seed).permutation(len(distinct))[:count]
    chosen = {distinct[i] for i in drawn.tolist()}
    held = np.array([key in chosen for key in keys])
    return everything[~held], everything[held]


def _tune_shared(
    network: AdaptedNetwork,
    texts: Texts,
    labels: _Labels,
    config: TextNetworkConfig,
    seed: int,
    progress: Progress,
) -> list[Tuned]:
    network.begin(labels.logits.astype(np.float32), seed)
    with progress.task("tuning", total=steps_of(texts, config) * config.epochs) as advance:
        tuned = tune(network, texts, config, seed=seed, advance=advance)
    weight, bias = tuned.arrays["head.weight"], tuned.arrays["head.bias"]
    weight[~labels.learned] = 0
    bias[~labels.learned] = labels.logits[~labels.learned]
    return [tuned]


def _tune_each(
    network: AdaptedNetwork,
    texts: Texts,
    labels: _Labels,
    config: TextNetworkConfig,
    seed: int,
    progress: Progress,
) -> list[Tuned]:
    parts: dict[int, Texts] = {i: texts.only(i) for i in np.flatnonzero(labels.learned).tolist()}
    total = sum(steps_of(part, config) for part in parts.values()) * config.epochs
    draws: list[Any] = np.random.SeedSequence(seed).generate_state(len(labels.learned)).tolist()
    tuned = []
    with progress.task("tuning", total=total) as advance:
        for i, draw in enumerate(draws):
            network.begin(labels.logits[i : i + 1].astype(np.float32), draw)
            if i in parts:
                tuned.append(tune(network, parts[i], config, seed=draw, advance=advance))
            else:
                tuned.append(Tuned(network.arrays(), [], [], -1))
    return tuned
