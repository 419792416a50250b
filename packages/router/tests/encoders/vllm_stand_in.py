"""What stands for vLLM: it writes the files of its hidden-states connector, with `transformers`.

It takes the options that the guide gives to vLLM, and refuses those with which vLLM's states are
wrong. Hooks of its own read the stream after each block of the whole network.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModel

Streams = dict[int, torch.Tensor]


def blocks_of(network: Any) -> torch.nn.ModuleList:
    """The blocks, under the name that the family gives them."""
    blocks: torch.nn.ModuleList = network.h if hasattr(network, "h") else network.layers
    return blocks


def streams(network: Any, ids: Sequence[int]) -> Streams:
    """The stream after so many blocks, [token, hidden]: 0 is what the first block reads."""
    states: Streams = {}

    def before(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states[0] = (args[0] if args else kwargs["hidden_states"])[0]

    def after(number: int) -> Any:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            states[number + 1] = (output if torch.is_tensor(output) else output[0])[0]

        return hook

    blocks = blocks_of(network)
    hooks = [blocks[0].register_forward_pre_hook(before, with_kwargs=True)]
    hooks += [block.register_forward_hook(after(number)) for number, block in enumerate(blocks)]
    with torch.no_grad():
        network(input_ids=torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return states


class SamplingParams:
    """The number of tokens to generate."""

    def __init__(self, *, max_tokens: int) -> None:
        assert max_tokens == 1


class LLM:
    """Runs a network and keeps the streams that the speculative configuration names."""

    def __init__(
        self,
        model: str,
        *,
        dtype: str,
        max_model_len: int,
        enable_prefix_caching: bool,
        enable_chunked_prefill: bool,
        speculative_config: dict[str, Any],
        kv_transfer_config: dict[str, Any],
    ) -> None:
        assert not enable_prefix_caching
        assert not enable_chunked_prefill
        assert speculative_config["method"] == "extract_hidden_states"
        assert speculative_config["num_speculative_tokens"] == 1
        assert kv_transfer_config["kv_connector"] == "ExampleHiddenStatesConnector"
        assert kv_transfer_config["kv_role"] == "kv_producer"
        draft = speculative_config["draft_model_config"]["hf_config"]
        self.layers: list[int] = sorted(draft["eagle_aux_hidden_state_layer_ids"])
        extra = kv_transfer_config["kv_connector_extra_config"]
        self.folder = Path(extra["shared_storage_path"])
        self.longest = max_model_len - 1
        self.network = AutoModel.from_pretrained(model, dtype=getattr(torch, dtype)).eval()

    def generate(self, prompts: Sequence[dict[str, list[int]]], params: SamplingParams) -> list:
        """Write a file for each prompt, and return the paths."""
        assert isinstance(params, SamplingParams)
        self.folder.mkdir(parents=True, exist_ok=True)
        return [self.write_states(prompt["prompt_token_ids"]) for prompt in prompts]

    def write_states(self, ids: list[int]) -> SimpleNamespace:
        """Run one prompt and write its file."""
        assert len(ids) <= self.longest
        path = self.folder / f"{len(list(self.folder.iterdir()))}.safetensors"
        states = streams(self.network, ids)
        write_file(path, ids, torch.stack([states[layer] for layer in self.layers], dim=1))
        return SimpleNamespace(kv_transfer_params={"hidden_states_path": str(path)})


def write_file(path: Path, ids: Sequence[int], states: torch.Tensor) -> None:
    """Write a connector's file, and the lock that it leaves beside it."""
    tensors = {"hidden_states": states.contiguous(), "token_ids": torch.tensor(ids)}
    save_file(tensors, path)
    Path(f"{path}.lock").touch()


@contextmanager
def installed() -> Iterator[None]:
    """A context in which `import vllm` gets this."""
    module = ModuleType("vllm")
    module.LLM, module.SamplingParams = LLM, SamplingParams  # type: ignore[attr-defined]
    sys.modules["vllm"] = module
    try:
        yield
    finally:
        del sys.modules["vllm"]
