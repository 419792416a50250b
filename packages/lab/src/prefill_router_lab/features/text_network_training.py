"""Fine-tuning of pretrained networks on the text, by LoRA adapters (Hu et al. 2021).

One network with an output for each target learns all of them, or each target has its own network.
The adapted linear layers are given by name, or are the query and value projections of the
attention.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int
from numpy.typing import NDArray
from scipy.special import logit
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers.pytorch_utils import Conv1D

from prefill_router.data import RoutingDataset
from prefill_router.encoders import (
    HubEncoder,
    TokenBatch,
    TokenizedPrompt,
    batches,
    load_encoder,
    pad,
)
from prefill_router.errors import ConfigError, FitError
from prefill_router.lazy_imports import optional_imports
from prefill_router.progress import Advance, Progress
from prefill_router.statistics import base_rates, learnable
from prefill_router.training import Trainer, TrainingRun, train_epochs
from prefill_router_lab.features.text_network import Adaption, Pool, TextNetwork, TextNetworkConfig

Arrays = Mapping[str, NDArray[np.float32]]
_NAME = "router"


@final
class AdaptedNetwork:
    """A network with adapters; its own weights are frozen.

    Attributes:
        encoder: The encoder with the base network and its tokenizer.
        modules: The full names of the adapted layers.
    """

    def __init__(
        self,
        encoder: HubEncoder,
        *,
        outputs: int,
        pool: Pool,
        modules: Sequence[str] | None,
        rank: int,
        alpha: int,
        dropout: float,
    ) -> None:
        self.encoder = encoder
        self.modules = find_modules(encoder.network, modules)
        self._pool, self._lock = pool, Lock()
        config, inject = _configure_lora(self.modules, encoder.network, rank, alpha, dropout)
        with _seed_torch(encoder.device):
            inject(config, encoder.network, _NAME)
            self._head = nn.Linear(encoder.provenance.hidden_size, outputs).to(encoder.device)
        self._dropout = nn.Dropout(dropout)
        layers = dict(encoder.network.named_modules())
        self._weights: dict[str, Tensor] = {}
        for number, name in enumerate(self.modules):
            layer: Any = layers[name]
            self._weights[f"lora_a.{number}"] = layer.lora_A[_NAME].weight
            self._weights[f"lora_b.{number}"] = layer.lora_B[_NAME].weight
        self._weights |= {"head.weight": self._head.weight, "head.bias": self._head.bias}
        self._network = nn.ModuleList([encoder.network, self._head, self._dropout])
        self._network.eval()

    @property
    def parameters(self) -> list[Tensor]:
        """The trainable parameters."""
        return list(self._weights.values())

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """Copies of the trainable parameters, by name.

        `lora_a.I` [rank, input] and `lora_b.I` [output, rank] belong to the adapted layer I,
        `head.weight` [output, hidden] and `head.bias` [output] to the outputs.
        """
        return {name: w.detach().cpu().numpy().copy() for name, w in self._weights.items()}

    @torch.no_grad()
    def load(self, arrays: Arrays) -> None:
        """Load arrays of `arrays`.

        Raises:
            ConfigError: They belong to another network.
        """
        if {k: v.shape for k, v in arrays.items()} != {
            name: tuple(weight.shape) for name, weight in self._weights.items()
        }:
            raise ConfigError(
                f"the adapters belong to another network than {self.encoder.provenance.encoder}"
            )
        for name, weight in self._weights.items():
            weight.copy_(torch.from_numpy(arrays[name]))

    @torch.no_grad()
    def begin(self, biases: Float32[NDArray[np.float32], " output"], seed: int) -> None:
        """Initialise the parameters: the network unchanged, and outputs with these biases."""
        random = torch.Generator().manual_seed(seed)
        for name, weight in self._weights.items():
            if name.startswith("lora_a."):
                bound = 1 / math.sqrt(weight.shape[1])
                weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=random))
            else:
                weight.zero_()
        self._head.bias.copy_(torch.from_numpy(biases))

    @contextmanager
    def training(self, seed: int) -> Iterator[None]:
        """A context with dropout, whose random numbers start from this seed."""
        self._network.train()
        try:
            with _seed_torch(self.encoder.device, seed):
                yield
        finally:
            self._network.eval()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """A context without dropout, for evaluation during training."""
        self._network.eval()
        try:
            yield
        finally:
            self._network.train()

    def logits(self, prompts: Sequence[TokenizedPrompt]) -> Tensor:
        """The outputs for a batch of prompts, [query, output]."""
        batch = pad([prompt.ids for prompt in prompts], self.encoder.padding, self.encoder.device)
        network: Any = self.encoder.network
        has_cache = getattr(network.config, "use_cache", None) is not None
        options = {"use_cache": False} if has_cache else {}
        output = network(input_ids=batch.ids, attention_mask=batch.mask, **options)
        states = self._pool_states(batch, output.last_hidden_state)
        logits: Tensor = self._head(self._dropout(states))
        return logits

    def _pool_states(self, batch: TokenBatch, states: Tensor) -> Tensor:
        return states[:, 0] if self._pool == "first" else batch.pool(states, self._pool)

    def read(
        self, prompts: Sequence[TokenizedPrompt], networks: Sequence[Arrays]
    ) -> Float32[NDArray[np.float32], "network query output"]:
        """The outputs of several networks, each with its own adapters, for these prompts.

        Raises:
            ConfigError: The adapters belong to another network.
        """
        result = np.empty((len(networks), len(prompts), len(self._head.bias)), dtype=np.float32)
        lengths = [len(prompt.ids) for prompt in prompts]
        with self._lock, torch.inference_mode():  # other threads would load other adapters
            for number, arrays in enumerate(networks):
                self.load(arrays)
                for rows in batches(lengths, self.encoder.batch_tokens):
                    part = self.logits([prompts[row] for row in rows])
                    result[number, rows] = part.cpu().numpy()
        return result


@contextmanager
def _seed_torch(device: torch.device, seed: int = 0) -> Iterator[None]:
    """A context in which torch's global generators start from a seed; they are restored after it.

    Dropout layers can only use these global generators.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.random.manual_seed(seed)
        yield


def _configure_lora(
    modules: Sequence[str], network: nn.Module, rank: int, alpha: int, dropout: float
) -> tuple[Any, Any]:
    with optional_imports("a network on the text"):
        from peft import LoraConfig, inject_adapter_in_model
    modules_by_name = dict(network.named_modules())
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=list(modules),
        fan_in_fan_out=not isinstance(modules_by_name[modules[0]], nn.Linear),
        bias="none",
    )
    return config, inject_adapter_in_model


_QUERIES_AND_VALUES = (
    ("query_proj", "value_proj"),  # DeBERTa v2 and v3
    ("q_proj", "v_proj"),  # Llama, Qwen, Mistral, Gemma, OPT
    ("query", "value"),  # BERT, RoBERTa
    ("q_lin", "v_lin"),  # DistilBERT
    ("Wqkv",),  # ModernBERT
    ("qkv_proj",),  # Phi-3
    ("query_key_value",),  # GPT-NeoX, Falcon
    ("c_attn",),  # GPT-2
)


def find_modules(network: nn.Module, names: Iterable[str] | None) -> tuple[str, ...]:
    """The full names of the layers to adapt, in the network's order.

    Args:
        network: The base network.
        names: The last parts of their names; by default the query and value projections.

    Raises:
        ConfigError: There are no such layers, or a name matches none.
    """
    linear = [name for name, module in network.named_modules() if _is_linear(module)]
    last = {name.rpartition(".")[2] for name in linear}
    if names is None:
        suffixes = next((set(pair) for pair in _QUERIES_AND_VALUES if set(pair) <= last), set())
    else:
        suffixes = set(names)
    if not suffixes or suffixes - last:
        what = f"no linear layer called {sorted(suffixes - last)}" if suffixes else "no known names"
        raise ConfigError(
            f"{type(network).__name__} has {what}; name the layers to adapt with `modules`: "
            f"its linear layers are {sorted(last)}"
        )
    return tuple(name for name in linear if name.rpartition(".")[2] in suffixes)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | Conv1D)


Rows = Int[NDArray[np.int64], " _"]
_BATCHES_SORTED = 16
"""The number of batches that are sorted by length together: less padding, still a random order."""
_LONGEST_GRADIENT = 1.0


@final
@dataclass(frozen=True, eq=False)
class Texts:
    """The train rows.

    Attributes:
        prompts: The tokenised prompts.
        correct: Labels in [0, 1], NaN where missing.
        fit: The rows that are fitted on.
        held_out: The held-out rows for the validation loss.
    """

    prompts: Sequence[TokenizedPrompt]
    correct: Float64[NDArray[np.float64], "query target"]
    fit: Rows
    held_out: Rows

    @property
    def present(self) -> Bool[NDArray[np.bool_], "query target"]:
        """Which labels are known."""
        return ~np.isnan(self.correct)

    def only(self, target: int) -> "Texts":
        """The rows with labels of one target; if one part would be empty, both have all rows."""
        has_label = self.present[:, target]
        fit, held_out = self.fit[has_label[self.fit]], self.held_out[has_label[self.held_out]]
        if not len(fit) or not len(held_out):
            fit = held_out = np.flatnonzero(has_label)
        return Texts(self.prompts, self.correct[:, target : target + 1], fit, held_out)


@final
@dataclass(eq=False)
class TuningRun(TrainingRun):
    """One network's losses, and `AdaptedNetwork.arrays` of its best epoch."""

    arrays: dict[str, NDArray[np.float32]] = field(default_factory=dict)


def steps_of(texts: Texts, config: TextNetworkConfig) -> int:
    """The number of steps per epoch."""
    return math.ceil(len(texts.fit) / config.batch_size)


def tune(
    network: AdaptedNetwork,
    texts: Texts,
    config: TextNetworkConfig,
    *,
    seed: int,
    advance: Advance,
) -> TuningRun:
    """Train the network from its present parameters.

    Raises:
        FitError: The losses aren't finite.
    """
    trainer = _TextTrainer(network, texts, config, np.random.default_rng(seed), advance)
    with network.training(seed):
        train_epochs(trainer, max_epochs=config.epochs)
    advance(steps_of(texts, config) * (config.epochs - len(trainer.run.train)))
    return trainer.run


@final
class _TextTrainer(Trainer):
    """One network in training; it reports every step, since an epoch is long."""

    def __init__(
        self,
        network: AdaptedNetwork,
        texts: Texts,
        config: TextNetworkConfig,
        random: np.random.Generator,
        advance: Advance,
    ) -> None:
        self.run = TuningRun()
        self._network, self._texts, self._config = network, texts, config
        self._random, self._advance = random, advance
        self._adam = torch.optim.AdamW(
            network.parameters, lr=config.learning_rate, weight_decay=config.weight_decay
        )
        rate = _make_rate(steps_of(texts, config) * config.epochs, config.warmup)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._adam, rate)

    @property
    def active(self) -> int:
        """1 until the network has stopped, then 0."""
        return int(self.run.epochs_since_best < self._config.patience)

    def epoch(self) -> None:
        """Train on the fitting rows once."""
        losses = []
        for rows in _draw_batches(self._texts, self._config.batch_size, self._random):
            losses.append(self._step(rows))
            self._advance(note=f"loss {losses[-1]:.3f}")
        train, validation = float(np.mean(losses)), _validate(self._network, self._texts)
        if not math.isfinite(train + validation):
            raise FitError("the losses aren't finite; lower learning_rate")
        if self.run.record(train, validation):
            self.run.arrays = self._network.arrays()

    def _step(self, rows: Sequence[int]) -> float:
        loss, count = _compute_loss(self._network, self._texts, rows)
        self._adam.zero_grad()
        torch.autograd.backward([loss / count])
        torch.nn.utils.clip_grad_norm_(self._network.parameters, _LONGEST_GRADIENT)
        self._adam.step()
        self._schedule.step()
        return loss.item() / count


def _make_rate(total: int, warmup: float) -> Callable[[int], float]:
    """The learning rate as a share of its peak: rising during the warm-up, then falling to 0."""
    rising = max(1, round(total * warmup))

    def rate(step: int) -> float:
        return min((step + 1) / rising, (total - step) / max(1, total - rising))

    return rate


def _draw_batches(
    texts: Texts, batch_size: int, random: np.random.Generator
) -> Iterator[Sequence[int]]:
    """The fitting rows in batches of similar length, in random order."""
    order = random.permutation(texts.fit)
    lengths = np.array([len(prompt.ids) for prompt in texts.prompts])
    parts: list[list[int]] = []
    for start in range(0, len(order), batch_size * _BATCHES_SORTED):
        pool = order[start : start + batch_size * _BATCHES_SORTED]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        parts += [pool[i : i + batch_size].tolist() for i in range(0, len(pool), batch_size)]
    for number in random.permutation(len(parts)).tolist():
        yield parts[number]


def _compute_loss(network: AdaptedNetwork, texts: Texts, rows: Sequence[int]) -> tuple[Tensor, int]:
    """The cross-entropy in nats summed over the labels of these rows, and the number of labels."""
    logits = network.logits([texts.prompts[row] for row in rows])
    labels = torch.from_numpy(np.nan_to_num(texts.correct[rows])).to(logits)
    each = binary_cross_entropy_with_logits(logits, labels, reduction="none")
    present = torch.from_numpy(texts.present[rows]).to(logits)
    return (each * present).sum(), max(1, int(present.sum()))


def _validate(network: AdaptedNetwork, texts: Texts) -> float:
    """The mean loss of the held-out rows, without dropout."""
    lengths = [len(texts.prompts[row].ids) for row in texts.held_out]
    total, labels = 0.0, 0
    with network.evaluating(), torch.no_grad():
        for part in batches(lengths, network.encoder.batch_tokens):
            rows = [int(texts.held_out[place]) for place in part]
            loss, _ = _compute_loss(network, texts, rows)
            total, labels = total + loss.item(), labels + int(texts.present[rows].sum())
    return total / max(1, labels)


PerTarget = Float64[NDArray[np.float64], " target"]


@final
@dataclass(frozen=True, eq=False)
class _Labels:
    """The labels of the train rows.

    Attributes:
        correct: NaN where missing, and in the columns of targets that can't be learned.
        learned: Which targets have two different labels.
        logits: The logit of each target's share of right answers, by the rule of succession.
        notes: Which targets can't be learned.
    """

    correct: Float64[NDArray[np.float64], "query target"]
    learned: Bool[NDArray[np.bool_], " target"]
    logits: PerTarget
    notes: tuple[str, ...]


def fit_text_network(
    train: RoutingDataset, config: TextNetworkConfig, *, seed: int, progress: Progress
) -> TextNetwork:
    """Fine-tune a network on the train rows.

    Queries without a usable label are left out. A target whose labels are all the same, or all
    missing, gets the logit of its share of right answers.

    Raises:
        ConfigError: The network can't be loaded, or an option doesn't fit it.
        FitError: There is nothing to learn from, or the losses aren't finite.
        MissingExtraError: peft isn't installed.
    """
    labels = _prepare_labels(train)
    encoder = load_encoder(
        config.network,
        revision=config.revision,
        max_tokens=config.max_tokens,
        dtype="float32",
        layers=None if config.layer is None else (config.layer,),
        as_network=True,
    )
    if not isinstance(encoder, HubEncoder):
        raise ConfigError(
            f"the network {config.network!r} can't be fine-tuned; name a hub id or folder"
        )
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
    texts = _prepare_texts(train, labels, encoder, config, seed)
    tuned = (_tune_shared if shared else _tune_each)(network, texts, labels, config, seed, progress)
    return TextNetwork(
        targets=train.pool.names,
        made_by=encoder.provenance,
        mode=config.mode,
        pool=config.pool,
        adaption=Adaption.of(network, rank=config.rank, alpha=config.alpha),
        arrays={name: np.stack([t.arrays[name] for t in tuned]) for name in tuned[0].arrays},
        report={"networks": [t.to_dict() for t in tuned], "notes": list(labels.notes)},
        source=config.network,
        layer=config.layer,
    )


def _prepare_labels(train: RoutingDataset) -> _Labels:
    correct = np.asarray(train.correct, dtype=np.float64)
    learned, rates = learnable(correct), base_rates(correct)
    if not learned.any():
        raise FitError(
            "no target has two different labels, so there is nothing to learn; "
            "add queries that a target answers correctly and queries that it doesn't"
        )
    notes = [
        f"{train.pool.names[i]} can't be learned: it lacks two different labels; "
        f"its predictions are {rates[i]:.3f}"
        for i in np.flatnonzero(~learned).tolist()
    ]
    usable = np.where(learned, correct, np.nan)
    return _Labels(usable, learned, np.asarray(logit(rates)), tuple(notes))


def _prepare_texts(
    train: RoutingDataset,
    labels: _Labels,
    encoder: HubEncoder,
    config: TextNetworkConfig,
    seed: int,
) -> Texts:
    """The rows with a label, in an order that doesn't depend on the dataset's."""
    keys = train.prompt_keys
    rows = np.flatnonzero(~np.isnan(labels.correct).all(axis=1)).tolist()

    def content(row: int) -> tuple[str, bytes]:
        return keys[row], np.nan_to_num(labels.correct[row], nan=-1.0).tobytes()

    rows.sort(key=content)
    prompts = encoder.tokenize([train.queries[row] for row in rows])
    fit, held_out = _hold_out([keys[row] for row in rows], config.validation, seed)
    return Texts(prompts, labels.correct[rows], fit, held_out)


def _hold_out(keys: list[str], share: float, seed: int) -> tuple[Rows, Rows]:
    """The rows to fit on and to hold out; equal prompts stay together, a single one is in both."""
    distinct = sorted(set(keys))
    rows = np.arange(len(keys))
    if len(distinct) == 1:
        return rows, rows
    count = min(max(round(share * len(distinct)), 1), len(distinct) - 1)
    order = np.random.default_rng(seed).permutation(len(distinct))[:count]
    chosen = {distinct[i] for i in order.tolist()}
    is_held_out = np.array([key in chosen for key in keys])
    return rows[~is_held_out], rows[is_held_out]


def _tune_shared(
    network: AdaptedNetwork,
    texts: Texts,
    labels: _Labels,
    config: TextNetworkConfig,
    seed: int,
    progress: Progress,
) -> list[TuningRun]:
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
) -> list[TuningRun]:
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
                tuned.append(TuningRun(arrays=network.arrays()))
    return tuned
