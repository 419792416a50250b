"""A router as a prefill checkpoint of NVIDIA's Switchyard, format 1, and theirs as a router.

The format's names, shapes and arithmetic are facts of NVIDIA-NeMo/Switchyard,
`crates/prefill-router/python/transformers_forward.py` at commit 6e6fd52, which reads the file with
`torch.load(weights_only=True)`:

    format_version     1
    models             the targets' names, in the order of the heads
    encoder            name, n_layers, hidden_dim, view "task_prompt_only"
    architecture       activation "ReLU", ensemble_reduction "mean(sigmoid(logits))"
    feature_pipeline   pooling, selected_layers; layer_mean and layer_std by the layer's number as
                       text, [hidden]; scaler_mean and scaler_scale [hidden]; pca_mean [hidden] and
                       pca_components [dim, hidden]
    model_state_dicts  a mapping for each network: weight and bias of adapters.i [adapter, dim],
                       trunk.0 [trunk, adapter] and heads.i [1, trunk] for target i

The last token of each selected layer is standardised, and their mean is scaled and reduced. Target
i has its own adapter and its own head, with the shared trunk between them. A ReLU follows the
adapter and the trunk.

Here one trunk has one first layer, so on export all adapters are that layer. Adapters that differ
are imported side by side: the second and third layers then have a block for each target.
"""

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from pickle import UnpicklingError
from struct import error as struct_error
from typing import TYPE_CHECKING, Annotated, Any, Literal, final
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from prefill_router import __version__
from prefill_router.activations import Provenance, Site
from prefill_router.cost import CostEstimator
from prefill_router.data import Split
from prefill_router.encoders import MINILM, gives_own_vectors
from prefill_router.errors import ConfigError, FormatError
from prefill_router.features import EncoderStates, FeatureExtractor, FeatureSet, Joint, SingleSite
from prefill_router.files import file_digest
from prefill_router.lazy_imports import optional_imports
from prefill_router.policy import Argmax, Lambda
from prefill_router.predictors import SharedTrunkNet
from prefill_router.router.record import RouterRecord, TrainedOn
from prefill_router.router.router import Router
from prefill_router.short_repr import short_repr
from prefill_router.targets import Pool, Target

if TYPE_CHECKING:
    import torch


LAYERS = 3
_PURPOSE = "a checkpoint of Switchyard"
_MOST_NUMBERS = 2**27
_UNREADABLE = (
    *(AssertionError, AttributeError, EOFError, IndexError, KeyError, MemoryError, OverflowError),
    *(OSError, RuntimeError, struct_error, TypeError, UnpicklingError, ValueError),
)
"""What `torch.load` raises for a file that isn't one of tensors, or is damaged."""
Array = NDArray[np.float32]


def unheld_encoder(made_by: Provenance) -> str | None:
    """Why Switchyard can't read a router's encoder, in words; None where it can."""
    name = made_by.encoder
    if gives_own_vectors(name) or name == MINILM or made_by.template != "chat":
        return f"{name} isn't read as a causal language model behind its chat template"
    if made_by.quantisation is not None:
        return f"{name} is quantised ({made_by.quantisation})"
    return None


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, arbitrary_types_allowed=True)


class _Encoder(_Part):
    name: str
    n_layers: PositiveInt
    hidden_dim: PositiveInt
    view: Literal["task_prompt_only"]


class _Architecture(_Part):
    activation: Literal["ReLU"]
    ensemble_reduction: Literal["mean(sigmoid(logits))"]


class _Pipeline(_Part):
    pooling: Literal["mean of independently standardized selected layers"]
    selected_layers: Annotated[list[NonNegativeInt], Field(min_length=1)]
    layer_mean: dict[str, Any]
    layer_std: dict[str, Any]
    scaler_mean: Any
    scaler_scale: Any
    pca_mean: Any
    pca_components: Any


class _Checkpoint(_Part):
    format_version: Literal[1]
    models: Annotated[list[str], Field(min_length=1)]
    encoder: _Encoder
    architecture: _Architecture
    feature_pipeline: _Pipeline
    model_state_dicts: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=1000)]


@short_repr
@final
@dataclass(frozen=True, eq=False)
class SwitchyardCheckpoint:
    """A checkpoint that was read, and can become a router once its encoder is known.

    Nothing in it is called or loaded: of the encoder it has a name alone, for messages.

    Attributes:
        encoder: The name of the encoder that it was made with.
        num_layers: The encoder's blocks.
        layers: The layers that are read.
        mean: What is subtracted from each layer, [layer, hidden].
        scale: What it is then divided by, [layer, hidden].
        components: What each feature takes of the mean over the layers, [dim, hidden].
        predictor: The networks on these features, and the targets' names.
        digest: The SHA-256 of the file.
    """

    encoder: str
    num_layers: int
    layers: tuple[int, ...]
    mean: Array
    scale: Array
    components: Array
    predictor: SharedTrunkNet
    digest: str

    @classmethod
    def read(cls, path: Path) -> "SwitchyardCheckpoint":
        """Read a file, tensors and plain values alone.

        Raises:
            ConfigError: There is no such file.
            FormatError: It isn't a checkpoint of format 1, is damaged, or selects a layer whose
                states are others here.
        """
        tensors = _Tensors(path)
        read = tensors.checkpoint
        made_with, pipeline = read.encoder, read.feature_pipeline
        layers = tuple(pipeline.selected_layers)
        if len(set(layers)) < len(layers) or max(layers) >= made_with.n_layers:
            raise FormatError(
                f"it selects the layers {list(layers)} of {made_with.n_layers}; they must "
                f"differ and be below {made_with.n_layers}, since Switchyard reads the last "
                "layer after the final norm and this package before it",
                file=path,
            )
        mean, scale, components = _merge_pipeline(tensors, pipeline, made_with.hidden_dim)
        weights, biases = _stack_trunks(tensors, read, len(components))
        net = SharedTrunkNet(tuple(read.models), weights, biases)
        return cls(
            *(made_with.name, made_with.n_layers, layers, mean, scale, components),
            predictor=net,
            digest=file_digest(path),
        )

    def router(self, made_by: Provenance) -> Router:
        """The router: without prices, it takes the most probable target.

        Args:
            made_by: How its encoder's states are made here.

        Raises:
            ConfigError: It is another encoder, or isn't read behind its chat template.
        """
        hidden = self.mean.shape[1]
        if (made_by.num_layers, made_by.hidden_size) != (self.num_layers, hidden):
            raise ConfigError(
                f"the encoder {made_by.encoder} has {made_by.num_layers} layers of the width "
                f"{made_by.hidden_size}; the checkpoint needs {self.num_layers} of {hidden}: name "
                f"the encoder that it was made with, which it calls {self.encoder!r}"
            )
        unread = unheld_encoder(made_by)
        if unread is not None:
            raise ConfigError(f"{unread}, as Switchyard reads it; name the encoder's original")
        source, count = EncoderStates(made_by, "float32"), len(self.layers)
        places = tuple(SingleSite(source, Site(layer, "last")) for layer in self.layers)
        components = np.tile(self.components / np.float32(count), (1, count))
        pool = Pool(tuple(Target(name=name) for name in self.predictor.targets))
        unknown, ones = np.full(len(pool), np.nan), np.ones(len(pool))
        return Router(
            features=FeatureSet(
                (Joint(places, self.mean.ravel(), self.scale.ravel(), components),)
            ),
            predictor=self.predictor,
            costs=CostEstimator(pool, unknown, ones, unknown, unknown, unknown),
            policy=Argmax(),
            split=Split({"train": ()}, seed=0, merged={}),
            record=self._make_record(),
        )

    def _make_record(self) -> RouterRecord:
        nothing = TrainedOn(fingerprint="unknown", queries={}, benchmarks={}, missing_labels=0)
        note = (
            f"imported from a prefill checkpoint of Switchyard, whose encoder is named "
            f"{self.encoder!r}; what it was fitted on is unknown, it has no prices, and it wasn't "
            "evaluated"
        )
        return RouterRecord(
            created=datetime.now(UTC).date().isoformat(),
            package=__version__,
            trained_on=nothing,
            options={"switchyard": self.digest},
            notes=(note,),
        )


def _merge_pipeline(
    tensors: "_Tensors", pipeline: _Pipeline, hidden: int
) -> tuple[Array, Array, Array]:
    """The pipeline as one mean and scale for each layer, and components of the layers' mean.

    With d = scaler_mean + pca_mean * scaler_scale, the features are the components, divided by
    scaler_scale, of the mean over the layers of (state - mean - d * std) / std.
    """

    def take(name: str, *, positive: bool = False) -> NDArray[np.float64]:
        return tensors.array(getattr(pipeline, name), (hidden,), name, positive=positive)

    def layered(name: str, *, positive: bool = False) -> NDArray[np.float64]:
        values, layers = getattr(pipeline, name), pipeline.selected_layers
        rows = [(values.get(str(k)), f"{name}[{k}]") for k in layers]
        return np.stack([tensors.array(v, (hidden,), of, positive=positive) for v, of in rows])

    dim = tensors.length(pipeline.pca_components, "pca_components")
    tensors.check_size(len(pipeline.selected_layers) * hidden * (dim + 2), "feature_pipeline")
    std, by = layered("layer_std", positive=True), take("scaler_scale", positive=True)
    mean = layered("layer_mean") + std * (take("scaler_mean") + take("pca_mean") * by)
    components = tensors.array(pipeline.pca_components, (None, hidden), "pca_components") / by
    return mean.astype(np.float32), std.astype(np.float32), components.astype(np.float32)


def _stack_trunks(
    tensors: "_Tensors", read: _Checkpoint, dim: int
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """The weights and biases of each layer, stacked over the networks."""
    first = read.model_state_dicts[0]
    adapter, trunk = (tensors.length(first.get(f"{n}.bias"), n) for n in ("adapters.0", "trunk.0"))
    targets, numbers = range(len(read.models)), len(read.models) * (adapter * (dim + 1) + trunk + 1)
    tensors.check_size(
        len(read.model_state_dicts) * (numbers + trunk * (adapter + 1)), "model_state_dicts"
    )
    networks = []
    for number, state in enumerate(read.model_state_dicts):

        def pair(name: str, shape: tuple[int, int], of: Any = state, n: int = number) -> Any:
            weight = tensors.array(of.get(f"{name}.weight"), shape, f"{name}.weight of network {n}")
            bias = tensors.array(of.get(f"{name}.bias"), shape[:1], f"{name}.bias of network {n}")
            return weight.T, bias

        adapters = [pair(f"adapters.{i}", (adapter, dim)) for i in targets]
        heads = [pair(f"heads.{i}", (1, trunk)) for i in targets]
        networks.append((adapters, pair("trunk.0", (trunk, adapter)), heads))
    shared = all(
        np.array_equal(w, adapters[0][0]) and np.array_equal(b, adapters[0][1])
        for adapters, _, _ in networks
        for w, b in adapters
    )
    copies = 1 if shared else len(read.models)
    tensors.check_size(
        len(networks) * copies**2 * adapter * trunk,
        f"the adapters of {copies} targets side by side",
    )
    layers = [_join_adapters(*network, copies=copies) for network in networks]
    stacked = [np.stack(parts).astype(np.float32) for parts in zip(*layers, strict=True)]
    return tuple(stacked[:LAYERS]), tuple(stacked[LAYERS:])


def _join_adapters(
    adapters: Sequence[Any], trunk: tuple[Any, Any], heads: Sequence[Any], *, copies: int
) -> list[NDArray[np.float64]]:
    """The three weights and the three biases of a network with so many adapters side by side."""
    from scipy.linalg import block_diag

    last = [weight for weight, _ in heads]
    return [
        np.concatenate([weight for weight, _ in adapters[:copies]], axis=1),
        block_diag(*[trunk[0]] * copies),
        np.concatenate(last, axis=1) if copies == 1 else block_diag(*last),
        np.concatenate([bias for _, bias in adapters[:copies]]),
        np.tile(trunk[1], copies),
        np.concatenate([bias for _, bias in heads]),
    ]


class _Tensors:
    """A file's plain values, checked, and its tensors, which are checked as they are taken."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._size = path.stat().st_size
            self.checkpoint = _Checkpoint.model_validate(_load_content(path))
        except OSError as error:
            raise ConfigError(
                f"{path} can't be read: {error.strerror or error}; name a checkpoint of Switchyard"
            ) from None
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "the whole"
            raise FormatError(
                f"not a prefill checkpoint of Switchyard, format 1: {place}: {first['msg']}",
                file=path,
            ) from None

    def array(
        self, value: Any, shape: tuple[int | None, ...], name: str, *, positive: bool = False
    ) -> NDArray[np.float64]:
        """A tensor of this shape, where None is any length from 1, as finite numbers."""
        import torch

        sign = "positive " if positive else ""
        wanted = f"it must be a tensor of finite {sign}numbers, {_describe_shape(shape)}"
        plain = isinstance(value, torch.Tensor) and value.is_floating_point()
        if not plain or value.layout is not torch.strided or value.device.type != "cpu":
            got = "missing" if value is None else f"a {type(value).__name__} of another kind"
            raise FormatError(f"{name} is {got}; {wanted}", file=self.path)
        fits = len(value.shape) == len(shape) and all(
            size == want or (want is None and size > 0)
            for size, want in zip(value.shape, shape, strict=True)
        )
        if not fits or value.nbytes > self._size:
            got = f"of the shape {list(value.shape)}"
            raise FormatError(f"{name} is {got}; {wanted}", file=self.path)
        numbers: NDArray[np.float64] = value.detach().double().numpy()
        if not np.isfinite(numbers).all() or (positive and (numbers <= 0).any()):
            raise FormatError(f"{name} holds other numbers; {wanted}", file=self.path)
        return numbers

    def length(self, value: Any, name: str) -> int:
        """The first size of a tensor; the others are checked as it is taken."""
        size = value.shape[0] if getattr(value, "shape", ()) else 0
        if not isinstance(size, int) or size < 1:
            raise FormatError(f"{name} is missing, or no tensor of numbers", file=self.path)
        return size

    def check_size(self, numbers: int, what: str) -> None:
        """Refuse what would fill the memory: one tensor may be written once and named often."""
        if numbers > _MOST_NUMBERS:
            raise FormatError(
                f"{what}: {numbers:,} numbers; at most {_MOST_NUMBERS:,} are read: import one of "
                "fewer targets, networks or layers",
                file=self.path,
            )


def _describe_shape(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('any' if size is None else str(size) for size in shape)}]"


def _load_content(path: Path) -> Mapping[str, Any]:
    with optional_imports(_PURPOSE):
        import torch

    with path.open("rb"):  # what can't be opened has an error of its own
        pass
    try:
        _check_parts(path)
        with warnings.catch_warnings(action="ignore"):  # of the age of pickles, which are refused
            content = torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE:
        raise FormatError(
            "it isn't a file of tensors and plain values that PyTorch saved, or it is damaged; "
            "nothing else is read from it: copy it again, or have it saved as tensors",
            file=path,
        ) from None
    return content if isinstance(content, dict) else {}


def _check_parts(path: Path) -> None:
    """Refuse an archive that would grow as it is read; PyTorch's own are never compressed."""
    try:
        with ZipFile(path) as archive:
            parts = archive.infolist()
    except BadZipFile:  # PyTorch wrote files of another kind before, and reads them
        return
    is_stored = all(part.compress_type == ZIP_STORED for part in parts)
    if not is_stored or sum(part.file_size for part in parts) > path.stat().st_size:
        raise UnpicklingError


_FIT_ONE = "fit one that it holds with: prefill-router fit DATA --store STORES --for switchyard"


def switchyard_bytes(router: Router) -> bytes:
    """The content of the checkpoint that has a router's probabilities: plain values and tensors.

    Raises:
        ConfigError: The format doesn't hold this router; the message has every reason.
        MissingExtraError: torch isn't installed.
    """
    with optional_imports(_PURPOSE):
        import torch

    reasons = list(_find_obstacles(router))
    block, net = _find_block(router.features), router.predictor
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
        "feature_pipeline": _export_pipeline(block),
        "model_state_dicts": [_export_network(net, number) for number in range(net.networks)],
    }
    content = io.BytesIO()
    torch.save(value, content)
    return content.getvalue()


def _find_block(features: FeatureSet) -> Joint | None:
    """The block of prefill states, if there is exactly one."""
    if len(features.families) > 1:
        return None
    [family] = features.families
    if isinstance(family, FeatureExtractor) and len(family.blocks) == 1:
        [block] = family.blocks
        of, place = block.reducer, SingleSite(block.source, block.site)
        return Joint((place,), of.mean, of.scale, of.components)
    return family if isinstance(family, Joint) else None


def _find_obstacles(router: Router) -> Iterator[str]:
    """Why the format doesn't hold a router."""
    block, net = _find_block(router.features), router.predictor
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


def _export_pipeline(block: Joint) -> dict[str, Any]:
    count = len(block.places)
    layers = [place.site.layer for place in block.places]
    mean, scale = np.split(block.mean, count), np.split(block.scale, count)
    hidden = len(mean[0])
    return {
        "pooling": "mean of independently standardized selected layers",
        "selected_layers": layers,
        "layer_mean": {str(k): _to_tensor(row) for k, row in zip(layers, mean, strict=True)},
        "layer_std": {str(k): _to_tensor(row) for k, row in zip(layers, scale, strict=True)},
        "scaler_mean": _to_tensor(np.zeros(hidden)),
        "scaler_scale": _to_tensor(np.ones(hidden)),
        "pca_mean": _to_tensor(np.zeros(hidden)),
        "pca_components": _to_tensor(block.components[:, :hidden] * count),
    }


def _export_network(net: SharedTrunkNet, number: int) -> "dict[str, torch.Tensor]":
    adapter, trunk, heads = (_to_tensor(weight[number].T) for weight in net.weights)
    first, second, last = (_to_tensor(bias[number]) for bias in net.biases)
    tensors = {"trunk.0.weight": trunk, "trunk.0.bias": second}
    for i in range(len(net.targets)):
        tensors |= {f"adapters.{i}.weight": adapter, f"adapters.{i}.bias": first}
        tensors |= {f"heads.{i}.weight": heads[i : i + 1], f"heads.{i}.bias": last[i : i + 1]}
    return tensors


def _to_tensor(array: NDArray[Any]) -> "torch.Tensor":
    import torch

    return torch.from_numpy(np.array(array, dtype=np.float32, order="C"))
