"""A decision with `smollm2` in int8: torch's dynamic quantisation, and the bare matrix products.

The decision is one prompt of some 120 tokens to layer 20 of 30, from tokens to pooled states, by
one thread. Products alone are those of these blocks on as many tokens, with random weights: what no
library could save more of. Times are processor time, and ways take turns, so that other programs
matter little. Errors are relative to float32.

    python -m benchmarks.int8_weights [--rounds 10]
"""

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch.ao.nn.quantized import dynamic
from torch.ao.quantization import quantize_dynamic

from benchmarks._networks import RESULTS, machine
from prefill_router import files
from prefill_router.activations import Site
from prefill_router.data import Query
from prefill_router.encoders import HubEncoder, TokenizedPrompt, load_encoder
from prefill_router.encoders.load import Dtype

LAYER = 20
SITES = (Site(LAYER, "last"), Site(LAYER, "mean"))
TEXT = "Which of these words comes first in the alphabet? " * 9
NEEDED = {"times_as_fast": 4 / 3}
BITS, BLOCK = 4, 32
Way = Callable[[], object]


def load(dtype: Dtype) -> HubEncoder:
    """The encoder in a type."""
    encoder = load_encoder("smollm2", device="cpu", dtype=dtype, layers=[LAYER])
    assert isinstance(encoder, HubEncoder)
    return encoder


def quantise(encoder: HubEncoder) -> HubEncoder:
    """The encoder with linear maps in int8, whose inputs are quantised as they come."""
    network: Any = quantize_dynamic(encoder.network, {torch.nn.Linear}, dtype=torch.qint8)  # type: ignore[no-untyped-call]
    return replace(encoder, network=network, blocks=network.layers)


def milliseconds(ways: dict[str, Way], rounds: int) -> dict[str, float]:
    """The median processor time of each way; the first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            begun = time.process_time()
            way()
            times[name].append(1000 * (time.process_time() - begun))
    return {name: round(median(durations[1:]), 1) for name, durations in times.items()}


def decision(rounds: int) -> dict[str, Any]:
    """Milliseconds and errors of a whole decision."""
    encoders = {"bfloat16": load("bfloat16"), "float32": load("float32")}
    encoders["int8"] = quantise(load("float32"))
    prompts = encoders["float32"].tokenize([Query("q", TEXT)])
    truth = read_states(encoders["float32"], prompts)
    errors = {
        name: round(
            float(np.linalg.norm(read_states(e, prompts) - truth) / np.linalg.norm(truth)), 4
        )
        for name, e in encoders.items()
    }
    ways: dict[str, Way] = {name: partial(e.states, prompts, SITES) for name, e in encoders.items()}
    return {
        "tokens": len(prompts[0].ids),
        "milliseconds": milliseconds(ways, rounds),
        "error_against_float32": errors,
    }


def read_states(encoder: HubEncoder, prompts: list[TokenizedPrompt]) -> NDArray[np.float32]:
    """The states at both sites."""
    found = encoder.states(prompts, SITES)
    return np.stack([found[site] for site in SITES])


def products(tokens: int, rounds: int) -> dict[str, float]:
    """Milliseconds of the blocks' matrix products alone, in each library."""
    config: Any = load("bfloat16").network.config
    hidden, inner = config.hidden_size, config.intermediate_size
    both = 2 * config.num_key_value_heads * config.head_dim
    shapes = [(hidden, hidden + both), (hidden, hidden)]
    shapes += [(hidden, inner), (hidden, inner), (inner, hidden)]
    generator = np.random.default_rng(0)
    inputs = {n: generator.standard_normal((tokens, n), np.float32) for n in (hidden, inner)}
    wide = {n: torch.from_numpy(rows) for n, rows in inputs.items()}
    half = {n: rows.bfloat16()[None] for n, rows in wide.items()}
    pack, multiply = torch.ops.mkldnn._reorder_linear_weight, torch.ops.mkldnn._linear_pointwise
    packed = [(k, pack(torch.randn(n, k).bfloat16(), 512)) for k, n in shapes]
    own = [(k, dynamic.Linear(k, n)) for k, n in shapes]  # type: ignore[no-untyped-call]
    sessions = {
        "int8, ONNX Runtime": [(k, int8_session(k, n, generator)) for k, n in shapes],
        "4 bits by int8 sums, ONNX Runtime": [
            (k, bits_session(k, n, generator)) for k, n in shapes
        ],
    }
    ways: dict[str, Way] = {
        "bfloat16, torch": lambda: [multiply(half[k], w, None, "none", [], "") for k, w in packed],
        "int8, torch": lambda: [layer(wide[k]) for k, layer in own],
    }
    ways |= {name: partial(multiply_all, made, inputs) for name, made in sessions.items()}
    repeated: dict[str, Way] = {name: partial(repeat, way) for name, way in ways.items()}
    with torch.inference_mode():
        return milliseconds(repeated, rounds)


def multiply_all(sessions: list[tuple[int, Any]], inputs: dict[int, NDArray[np.float32]]) -> None:
    """Each product of a block once."""
    for size, made in sessions:
        made.run(None, {"x": inputs[size]})


def repeat(way: Way) -> None:
    """The products of all blocks."""
    for _ in range(LAYER):
        way()


def int8_session(inputs: int, outputs: int, generator: np.random.Generator) -> Any:
    """A product in int8 whose inputs are quantised as they come."""
    weight = generator.integers(-127, 128, (inputs, outputs)).astype(np.int8)
    scale = np.full(outputs, 0.01, np.float32)
    arrays: dict[str, NDArray[Any]] = {"w": weight, "s": scale, "z": np.zeros(outputs, np.int8)}
    return session("DynamicQuantizeMatMul", arrays, inputs, outputs)


def bits_session(inputs: int, outputs: int, generator: np.random.Generator) -> Any:
    """A product with weights of 4 bits, whose sums are computed in int8."""
    blocks = -(-inputs // BLOCK)
    weight = generator.integers(0, 256, (outputs, blocks, BLOCK * BITS // 8)).astype(np.uint8)
    arrays: dict[str, NDArray[Any]] = {
        "w": weight,
        "s": np.full(outputs * blocks, 0.01, np.float32),
    }
    sizes = {"K": inputs, "N": outputs, "bits": BITS, "block_size": BLOCK, "accuracy_level": 4}
    return session("MatMulNBits", arrays, inputs, outputs, **sizes)


def session(
    operator: str, arrays: dict[str, NDArray[Any]], inputs: int, outputs: int, **attributes: Any
) -> Any:
    """One operator of ONNX Runtime, on one thread."""
    node = helper.make_node(operator, ["x", *arrays], ["y"], domain="com.microsoft", **attributes)
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["token", inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["token", outputs])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def main() -> None:
    """Measure, print, and write benchmarks/results/int8_weights.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    torch.set_num_threads(1)
    decision_figures = decision(rounds)
    alone = products(decision_figures["tokens"], rounds)
    milliseconds_of = decision_figures["milliseconds"]
    saved = alone["bfloat16, torch"] - min(ms for name, ms in alone.items() if "int8," in name)
    result = {
        "what": f"smollm2 to layer {LAYER} of 30, one prompt, one thread; processor milliseconds",
        "rounds": rounds,
        "decision": decision_figures,
        "products_alone": alone,
        "times_as_fast": round(milliseconds_of["bfloat16"] / milliseconds_of["int8"], 2),
        "times_as_fast_at_most": round(
            milliseconds_of["bfloat16"] / (milliseconds_of["bfloat16"] - saved), 2
        ),
        "needed": NEEDED,
        "met": milliseconds_of["bfloat16"] / milliseconds_of["int8"] >= NEEDED["times_as_fast"],
        "machine": machine(),
    }
    files.write_json(RESULTS / "int8_weights.json", result)
    print(result)


if __name__ == "__main__":
    main()
