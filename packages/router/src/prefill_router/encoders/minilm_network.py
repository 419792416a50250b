"""The network of all-MiniLM-L6-v2 in ONNX Runtime, on the processor, in float32.

Its graph has the operators that ONNX Runtime fuses from such a network itself. It is made for as
many blocks as are needed and holds no weights: those are read from safetensors, brought into the
graph's order, and given to the session. Pooling is a product with a matrix of weights per token, so
only pooled states leave the network, and only layers that are asked for are computed.

Source: Devlin et al., BERT (2019); Wang et al., MiniLM (2020).
"""

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from jaxtyping import Float32, Int32
from numpy.typing import NDArray
from safetensors import safe_open

from prefill_router.encoders import onnx_format
from prefill_router.encoders.onnx_format import FLOAT, INT32
from prefill_router.encoders.onnx_runtime import onnxruntime

Weights = Mapping[str, NDArray[np.float32]]
Pooled = Float32[NDArray[np.float32], "layer query pooling hidden"]
_ERRORS_ONLY = 3
_MICROSOFT: Final = "com.microsoft"


@final
class MiniLMNetwork:
    """The first blocks of the network, ready to run. Thread-safe.

    Args:
        config: The fields of `config.json`.
        weights: The file `model.safetensors`.
        blocks: The number of blocks to load.
        threads: The number of threads that compute.

    Raises:
        ValueError: The weights aren't those of the configuration.
    """

    def __init__(self, config: Any, weights: Path, *, blocks: int, threads: int) -> None:
        arrays = _read_weights(weights, _weight_shapes(config, blocks), blocks)
        self._values = [onnxruntime.OrtValue.ortvalue_from_numpy(each) for each in arrays.values()]
        self._names, self._graph = list(arrays), minilm_graph(config, blocks)
        self._threads = threads
        self._run = onnxruntime.RunOptions()
        self._run.only_execute_path_to_fetches = True

    def with_threads(self, threads: int) -> "MiniLMNetwork":
        """The same network, with the same weights, computed by another number of threads."""
        other = copy.copy(self)
        other.__dict__.pop("_session", None)
        other._threads = threads
        _ = other._session  # made once, before several threads ask for it
        return other

    @cached_property
    def _session(self) -> Any:
        """Made at first use: a copy with another number of threads may be all that is used."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _ERRORS_ONLY
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.add_external_initializers(self._names, self._values)
        return onnxruntime.InferenceSession(
            self._graph, options, providers=["CPUExecutionProvider"]
        )

    def pooled_states(
        self,
        ids: Int32[NDArray[np.int32], "query token"],
        lengths: Int32[NDArray[np.int32], " query"],
        pooling: Float32[NDArray[np.float32], "query pooling token"],
        layers: Sequence[int],
    ) -> Pooled:
        """The states at these layers, each a weighted sum over the tokens of a prompt.

        Args:
            ids: Token ids, padded on the right.
            lengths: The number of tokens of each prompt.
            pooling: The weight of each token in each sum; 0 for padding.
            layers: Layers up to the last block that is loaded; 0 is the input of the first block.
        """
        places = np.arange(ids.shape[1], dtype=np.int32)
        inputs = {"ids": ids, "places": places, "lengths": lengths, "pooling": pooling}
        outputs = self._session.run([_output(layer) for layer in layers], inputs, self._run)
        return np.stack(outputs)


def minilm_graph(config: Any, blocks: int) -> bytes:
    """The network's graph in the ONNX format.

    Inputs are `ids` [query, token], `places` [token], `lengths` [query] and `pooling` [query,
    pooling, token]. The outputs are `layer.0` to that of the last block, [query, pooling, hidden].
    """
    hidden, epsilon = config.hidden_size, config.layer_norm_eps
    nodes = [
        onnx_format.node("Gather", ["words", "ids"], "word_states"),
        onnx_format.node("Gather", ["positions", "places"], "position_states"),
        onnx_format.node("Add", ["word_states", "position_states"], "sums"),
        onnx_format.node(
            "LayerNormalization", ["sums", "norm", "norm.bias"], "0", axis=2, epsilon=epsilon
        ),
    ]
    for number in range(blocks):
        nodes += _block_nodes(number, config.num_attention_heads, epsilon)
    layers = range(blocks + 1)
    nodes += [onnx_format.node("MatMul", ["pooling", str(i)], _output(i)) for i in layers]
    output = ["query", "pooling", hidden]
    return onnx_format.model(
        "minilm",
        nodes=nodes,
        weights=_weight_shapes(config, blocks),
        inputs=[
            onnx_format.tensor_info("ids", INT32, ["query", "token"]),
            onnx_format.tensor_info("places", INT32, ["token"]),
            onnx_format.tensor_info("lengths", INT32, ["query"]),
            onnx_format.tensor_info("pooling", FLOAT, ["query", "pooling", "token"]),
        ],
        outputs=[onnx_format.tensor_info(_output(i), FLOAT, output) for i in layers],
    )


def _output(layer: int) -> str:
    return f"layer.{layer}"


def _block_nodes(number: int, heads: int, epsilon: float) -> list[bytes]:
    """Self-attention and a feed-forward network, each added to its input and normalised."""
    own = f"block.{number}."

    def fused_node(operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> bytes:
        return onnx_format.node(operator, inputs, output, domain=_MICROSOFT, **attributes)

    def norm_node(product: str, before: str, norm: str, bias: str, output: str) -> bytes:
        inputs = [own + product, before, own + norm, f"{own}{norm}.bias", own + bias]
        return fused_node("SkipLayerNormalization", inputs, output, epsilon=epsilon)

    before, after, between = str(number), str(number + 1), f"{own}between"
    qkv = [before, f"{own}qkv", f"{own}qkv.bias", "lengths"]
    return [
        fused_node("Attention", qkv, f"{own}attended", num_heads=heads),
        onnx_format.node("MatMul", [f"{own}attended", f"{own}out"], f"{own}projected"),
        norm_node("projected", before, "out_norm", "out.bias", between),
        onnx_format.node("MatMul", [between, f"{own}up"], f"{own}wide"),
        fused_node("BiasGelu", [f"{own}wide", f"{own}up.bias"], f"{own}activated"),
        onnx_format.node("MatMul", [f"{own}activated", f"{own}down"], f"{own}narrow"),
        norm_node("narrow", between, "down_norm", "down.bias", after),
    ]


def _weight_shapes(config: Any, blocks: int) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "words": (config.vocab_size, hidden),
        "positions": (config.max_position_embeddings, hidden),
        "norm": (hidden,),
        "norm.bias": (hidden,),
    }
    products = {
        "qkv": (hidden, 3 * hidden),
        "out": (hidden, hidden),
        "up": (hidden, inner),
        "down": (inner, hidden),
    }
    for number in range(blocks):
        own = f"block.{number}."
        for name, shape in products.items():
            shapes |= {own + name: shape, f"{own}{name}.bias": shape[1:]}
        for name in ("out_norm", "down_norm"):
            shapes |= {own + name: (hidden,), f"{own}{name}.bias": (hidden,)}
    return shapes


def _read_weights(path: Path, shapes: Mapping[str, tuple[int, ...]], blocks: int) -> Weights:
    """The weights in the graph's order.

    Raises:
        ValueError: One has another shape.
    """
    with safe_open(path, framework="numpy") as file:
        arrays = _embeddings(file)
        for number in range(blocks):
            arrays |= _block_weights(file, number)
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise ValueError(
                f"the weights {name} have the shape {arrays[name].shape}, and config.json says "
                f"{shape}"
            )
    return {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}


def _embeddings(file: Any) -> dict[str, NDArray[Any]]:
    """The tables of the input; every token is of the first type, so its row is added at once."""
    own = "embeddings."
    kind = file.get_tensor(f"{own}token_type_embeddings.weight")[0]
    return {
        "words": file.get_tensor(f"{own}word_embeddings.weight"),
        "positions": file.get_tensor(f"{own}position_embeddings.weight") + kind,
        "norm": file.get_tensor(f"{own}LayerNorm.weight"),
        "norm.bias": file.get_tensor(f"{own}LayerNorm.bias"),
    }


_MAPS = {
    "qkv": tuple(f"attention.self.{name}" for name in ("query", "key", "value")),
    "out": ("attention.output.dense",),
    "up": ("intermediate.dense",),
    "down": ("output.dense",),
}
"""The linear maps of a block, by their names in the file; those of attention are one."""
_NORMS = {"out_norm": "attention.output.LayerNorm", "down_norm": "output.LayerNorm"}


def _block_weights(file: Any, number: int) -> dict[str, NDArray[Any]]:
    """The weights of a block, linear maps as [input, output]."""
    theirs, own = f"encoder.layer.{number}.", f"block.{number}."
    arrays: dict[str, NDArray[Any]] = {}
    for name, parts in _MAPS.items():
        weights = [file.get_tensor(f"{theirs}{part}.weight") for part in parts]
        biases = [file.get_tensor(f"{theirs}{part}.bias") for part in parts]
        arrays[own + name] = np.concatenate(weights).T
        arrays[f"{own}{name}.bias"] = np.concatenate(biases)
    for name, part in _NORMS.items():
        arrays[own + name] = file.get_tensor(f"{theirs}{part}.weight")
        arrays[f"{own}{name}.bias"] = file.get_tensor(f"{theirs}{part}.bias")
    return arrays
