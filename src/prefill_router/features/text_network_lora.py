"""A pretrained network with adaptions (LoRA, Hu et al. 2021) and outputs of its own.

The linear layers that are adapted are named, or are those of queries and values.
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
    """The network; its own weights never change.

    Attributes:
        encoder: Whose network is adapted, with its tokenizer.
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
        """What is trained."""
        return list(self._weights.values())

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """Copies of what is trained, by name.

        `lora_a.I` [rank, input] and `lora_b.I` [output, rank] are of the adapted layer I,
        `head.weight` [output, hidden] and `head.bias` [output] of the outputs.
        """
        return {name: w.detach().cpu().numpy().copy() for name, w in self._weights.items()}

    @torch.no_grad()
    def load(self, arrays: Arrays) -> None:
        """Take such arrays.

        Raises:
            ConfigError: They are of another network.
        """
        if {k: v.shape for k, v in arrays.items()} != {
            name: tuple(weight.shape) for name, weight in self._weights.items()
        }:
            raise ConfigError(
                f"the adaptions are of another network than {self.encoder.provenance.encoder}"
            )
        for name, weight in self._weights.items():
            weight.copy_(torch.from_numpy(arrays[name]))

    @torch.no_grad()
    def begin(self, biases: Float32[NDArray[np.float32], " output"], seed: int) -> None:
        """Draw what training starts from: the network as it is, and outputs of these logits."""
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
        """Within it units are dropped, drawn from this seed."""
        self._network.train()
        try:
            with _own_draws(self.encoder.device, seed):
                yield
        finally:
            self._network.eval()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Within it, during training, nothing is dropped."""
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
        """The outputs for prompts of several networks, each with adaptions of its own.

        Raises:
            ConfigError: The adaptions are of another network.
        """
        result = np.empty((len(networks), len(prompts), len(self._head.bias)), dtype=np.float32)
        lengths = [len(prompt.ids) for prompt in prompts]
        with self._lock, torch.inference_mode():  # others would change the adaptions meanwhile
            for number, arrays in enumerate(networks):
                self.load(arrays)
                for rows in batches(lengths, self.encoder.batch_tokens):
                    part = self.logits([prompts[row] for row in rows])
                    result[number, rows] = part.cpu().numpy()
        return result


@contextmanager
def _own_draws(device: torch.device, seed: int = 0) -> Iterator[None]:
    """Within it torch's own generators start from a seed; afterwards they are as they were.

    The layers that drop units draw from these generators and from no others.
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
        names: Last parts of their names; those of an attention's queries and values if not given.

    Raises:
        ConfigError: There are none, or one of the names is nowhere.
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
