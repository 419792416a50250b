"""A pretrained network with LoRA adapters (Hu et al. 2021) and its own outputs.

The adapted linear layers are given by name, or are the query and value projections.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from prefill_router.encoders import HubEncoder, TokenBatch, TokenizedPrompt, batches, pad
from prefill_router.errors import ConfigError
from prefill_router.features.text_network import Pool
from prefill_router.lazy_imports import optional_imports

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
        self.modules = adapted_modules(encoder.network, modules)
        self._pool, self._lock = pool, Lock()
        config, inject = _lora(self.modules, encoder.network, rank, alpha, dropout)
        with _own_draws(encoder.device):
            inject(config, encoder.network, _NAME)
            self._head = nn.Linear(encoder.provenance.hidden_size, outputs).to(encoder.device)
        self._dropout = nn.Dropout(dropout)
        found = dict(encoder.network.named_modules())
        self._weights: dict[str, Tensor] = {}
        for number, name in enumerate(self.modules):
            layer: Any = found[name]
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
            with _own_draws(self.encoder.device, seed):
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
        found = network(input_ids=batch.ids, attention_mask=batch.mask, **options)
        states = self._pooled(batch, found.last_hidden_state)
        logits: Tensor = self._head(self._dropout(states))
        return logits

    def _pooled(self, batch: TokenBatch, states: Tensor) -> Tensor:
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
def _own_draws(device: torch.device, seed: int = 0) -> Iterator[None]:
    """A context in which torch's global generators start from a seed; they are restored after it.

    Dropout layers can only use these global generators.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.random.manual_seed(seed)
        yield


def _lora(
    modules: Sequence[str], network: nn.Module, rank: int, alpha: int, dropout: float
) -> tuple[Any, Any]:
    with optional_imports("a network on the text"):
        from peft import LoraConfig, inject_adapter_in_model
    found = dict(network.named_modules())
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=list(modules),
        fan_in_fan_out=not isinstance(found[modules[0]], nn.Linear),
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


def adapted_modules(network: nn.Module, names: Iterable[str] | None) -> tuple[str, ...]:
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
        wanted = next((set(pair) for pair in _QUERIES_AND_VALUES if set(pair) <= last), set())
    else:
        wanted = set(names)
    if not wanted or wanted - last:
        what = f"no linear layer called {sorted(wanted - last)}" if wanted else "no known names"
        raise ConfigError(
            f"{type(network).__name__} has {what}; name the layers to adapt with `modules`: "
            f"its linear layers are {sorted(last)}"
        )
    return tuple(name for name in linear if name.rpartition(".")[2] in wanted)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | Conv1D)
