"""A router as a prefill checkpoint of NVIDIA's Switchyard, whose format is in `switchyard`."""

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.features import FeatureExtractor, FeatureSet, Joint, SingleSite
from prefill_router.policy import Argmax, Lambda
from prefill_router.predictors import SharedTrunkNet
from prefill_router.router.router import Router
from prefill_router.router.switchyard import LAYERS, unheld_encoder

if TYPE_CHECKING:
    import torch

_FIT_ONE = "fit one that it holds with: prefill-router fit DATA --store STORES --for switchyard"


def switchyard_bytes(router: Router) -> bytes:
    """The content of the checkpoint that has a router's probabilities: plain values and tensors.

    Raises:
        ConfigError: The format doesn't hold this router; the message has every reason.
    """
    import torch

    reasons = list(_unheld(router))
    block, net = _block(router.features), router.predictor
    if reasons or block is None or not isinstance(net, SharedTrunkNet):
        raise ConfigError(f"Switchyard doesn't hold this router: {'; '.join(reasons)}; {_FIT_ONE}")
    made_by = block.places[0].source.provenance
    value = {
        "format_version": 1,
        "models": list(net.targets),
        "encoder": {
            "name": made_by.encoder,
            "n_layers": made_by.num_layers,
            "hidden_dim": made_by.hidden_size,
            "view": "task_prompt_only",
        },
        "architecture": {"activation": "ReLU", "ensemble_reduction": "mean(sigmoid(logits))"},
        "feature_pipeline": _pipeline(block),
        "model_state_dicts": [_network(net, number) for number in range(net.networks)],
    }
    content = io.BytesIO()
    torch.save(value, content)
    return content.getvalue()


def _block(features: FeatureSet) -> Joint | None:
    """The one block of prefill states; None where there is none, or more."""
    if len(features.families) > 1:
        return None
    [family] = features.families
    if isinstance(family, FeatureExtractor) and len(family.blocks) == 1:
        [found] = family.blocks
        of, place = found.reducer, SingleSite(found.source, found.site)
        return Joint((place,), of.mean, of.scale, of.components)
    return family if isinstance(family, Joint) else None


def _unheld(router: Router) -> Iterator[str]:
    """Why the format doesn't hold a router."""
    block, net = _block(router.features), router.predictor
    if block is None:
        kinds = " and ".join(family.kind for family in router.features.families)
        count = len(router.features.families)
        several = "several blocks" if count == 1 and kinds == "prefill" else kinds
        yield f"its features are {several}, and one block of hidden states is held"
    else:
        yield from _unheld_states(block)
    if not isinstance(net, SharedTrunkNet):
        yield f"its predictor is {net.kind}, and only {SharedTrunkNet.kind} is held"
    elif len(net.weights) != LAYERS:
        yield f"its networks have {len(net.weights)} layers, and {LAYERS} are held"
    if router.shrinkage is not None:
        yield "its probabilities are shrunk, and no shrinkage is held"
    if router.calibrator is not None:
        yield f"its probabilities are calibrated ({router.calibrator.kind}), which isn't held"
    if router.changes is not None:
        yield "targets joined or left after its fit, which isn't held"
    if not isinstance(router.policy, Argmax | Lambda):
        yield f"its policy is {router.policy.kind}, and the most probable target is taken there"


def _unheld_states(block: Joint) -> Iterator[str]:
    if len(block.sources) > 1:
        yield f"it reads {len(block.sources)} kinds of states, and those of one encoder are held"
        return
    made_by, sites = block.sources[0].provenance, [place.site for place in block.places]
    unread = unheld_encoder(made_by)
    if unread is not None:
        yield unread
    others = sorted({site.pooling for site in sites} - {"last"})
    if others:
        yield f"it pools states by {' and '.join(others)}, and the last token alone is held"
    if made_by.num_layers in {site.layer for site in sites}:
        yield f"it reads layer {made_by.num_layers}, the last, which there is after the final norm"
    if len({site.layer for site in sites}) < len(sites):
        yield "it reads a layer more than once"
    parts = block.components.reshape(block.width, len(sites), made_by.hidden_size)
    if not np.array_equal(parts, np.broadcast_to(parts[:, :1], parts.shape)):
        yield "its layers stand side by side, and only their mean is held"


def _pipeline(block: Joint) -> dict[str, Any]:
    count = len(block.places)
    layers = [place.site.layer for place in block.places]
    mean, scale = np.split(block.mean, count), np.split(block.scale, count)
    hidden = len(mean[0])
    return {
        "pooling": "mean of independently standardized selected layers",
        "selected_layers": layers,
        "layer_mean": {str(k): _tensor(row) for k, row in zip(layers, mean, strict=True)},
        "layer_std": {str(k): _tensor(row) for k, row in zip(layers, scale, strict=True)},
        "scaler_mean": _tensor(np.zeros(hidden)),
        "scaler_scale": _tensor(np.ones(hidden)),
        "pca_mean": _tensor(np.zeros(hidden)),
        "pca_components": _tensor(block.components[:, :hidden] * count),
    }


def _network(net: SharedTrunkNet, number: int) -> "dict[str, torch.Tensor]":
    adapter, trunk, heads = (_tensor(weight[number].T) for weight in net.weights)
    first, second, last = (_tensor(bias[number]) for bias in net.biases)
    found = {"trunk.0.weight": trunk, "trunk.0.bias": second}
    for i in range(len(net.targets)):
        found |= {f"adapters.{i}.weight": adapter, f"adapters.{i}.bias": first}
        found |= {f"heads.{i}.weight": heads[i : i + 1], f"heads.{i}.bias": last[i : i + 1]}
    return found


def _tensor(array: NDArray[Any]) -> "torch.Tensor":
    import torch

    return torch.from_numpy(np.array(array, dtype=np.float32, order="C"))
