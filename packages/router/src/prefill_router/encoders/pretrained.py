"""Loading of `transformers` networks, from the hub, a folder or a file of llama.cpp (GGUF).

Only the first blocks of a network are used. Most families can build only the first K blocks, by
their configuration, and load only those weights. That is done for the families for which tests
compare it with the whole network. Any other family is loaded whole, and its later blocks are
dropped. Some families compute something else when the configuration has fewer blocks, such as those
that share keys and values among the last blocks.

A GGUF file, as Ollama and LM Studio keep them, is dequantised once: `transformers` reads such a
file in tens of seconds, and what it gives computes in ordinary weights. So these are written to a
folder of the cache, in the type that is computed in, with the file's configuration, tokenizer and
chat template. From then on it is a local encoder like any other. Its revision is the digest of the
file. What the cache holds is compared with the digest of what was written there, and made again
where it differs.
"""

import copy
import json
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from numpy.typing import NDArray
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import cached_file, extract_commit_hash

from prefill_router.accelerator import torch_device
from prefill_router.activations import Provenance
from prefill_router.encoders.base import TokenizingEncoder
from prefill_router.encoders.compiling import BlockCompiler, least_tokens
from prefill_router.encoders.devices import (
    batch_tokens_on,
    devices_of,
    dtype_name,
    dtype_of,
    weights_map,
)
from prefill_router.encoders.encoder_names import EncoderRequest
from prefill_router.encoders.graphs import RecordedPasses
from prefill_router.encoders.hub import HubEncoder, move_to_device, read_batch, too_large
from prefill_router.encoders.llama import fuse_blocks
from prefill_router.encoders.packing import PACKED_BATCH_TOKENS, use_packing
from prefill_router.encoders.provenance import (
    TOKENIZER_FILES,
    check_files,
    file_revision,
    folder_revision,
    last_layer,
    loading_errors,
    provenance_of,
)
from prefill_router.encoders.threads import keep_torch_within_quota
from prefill_router.errors import ConfigError
from prefill_router.files import default_cache, replacing_folder, write_json, writer_lock
from prefill_router.lazy_imports import optional_imports


def hub_errors(request: EncoderRequest) -> AbstractContextManager[None]:
    """A context that turns exceptions of the loaders into a `ConfigError` of our own."""
    return loading_errors(request, StrictDataclassError)


def prepare_loading(request: EncoderRequest) -> None:
    """Check the options before anything is loaded, and silence the loaders.

    Raises:
        ConfigError: A revision is given for a folder, or `batch_tokens` is below 1.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    check_files(request)


def config_and_tokenizer(request: EncoderRequest) -> tuple[Any, Any]:
    """The network's configuration and its tokenizer, which pads on the right."""
    options = {"revision": request.revision, "trust_remote_code": request.trust_remote_code}
    config = AutoConfig.from_pretrained(request.source, **options)
    tokenizer = AutoTokenizer.from_pretrained(request.source, **options)
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        # Without its files a tokenizer is built without error, and every token is unknown.
        raise ConfigError(
            f"the tokenizer of {request.source} has no vocabulary; add its files, such as "
            "tokenizer.json"
        )
    tokenizer.padding_side = "right"
    return config, tokenizer


def commit_of(request: EncoderRequest, *names: str) -> str | None:
    """The hub's commit of the requested encoder; None for a folder.

    Args:
        request: The requested encoder.
        names: Files that can identify the commit; the first that exists is used.

    Raises:
        OSError: None of the files exists, or the hub can't be reached.
    """
    if request.is_local:
        return None
    for name in names:
        path = cached_file(
            request.source,
            name,
            revision=request.revision,
            _raise_exceptions_for_missing_entries=name == names[-1],
        )
        if path is not None:
            commit: str | None = extract_commit_hash(path, None)
            return commit
    return None


def tokenizer_files(source: str, commit: str | None) -> list[Path]:
    """The existing files of a tokenizer, in the order of `TOKENIZER_FILES`."""
    paths = [
        cached_file(
            source,
            name,
            revision=commit,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        for name in TOKENIZER_FILES
    ]
    return [Path(path) for path in paths if path is not None]


CUT_BY_CONFIG = frozenset(
    {
        "bert",
        "deberta-v2",
        "gemma3_text",
        "gpt2",
        "gpt_oss",
        "llama",
        "mistral",
        "modernbert",
        "nemotron_h",
        "qwen2",
        "qwen3",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_moe",
        "roberta",
    }
)
"""Families (`config.model_type`) that can be built with fewer blocks."""

_TYPES_OF_BLOCKS = ("layers_block_type", "layer_types")
_TEXT_PART = {r"^(?:model\.)?language_model\.(?:model\.)?": ""}
_MAY_BE_MISSING = ("pooler.",)


def text_config(config: Any) -> Any:
    """The configuration of the text network, also where there are others (vision, audio).

    Raises:
        ConfigError: The network can't be read at prefill.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise ConfigError(
            f"{config.model_type} is an encoder-decoder; choose a causal LM or an encoder"
        )
    text = config.get_text_config(decoder=True)
    if not isinstance(getattr(text, "num_hidden_layers", None), int):
        raise ConfigError(
            f"the configuration of {config.model_type} has no number of blocks; choose another "
            "encoder"
        )
    return text


def cut_config(config: Any, blocks: int) -> Any:
    """The configuration with fewer blocks where the family allows it, or else unchanged."""
    config = copy.deepcopy(config)
    if config.model_type not in CUT_BY_CONFIG or blocks >= config.num_hidden_layers:
        return config
    for name in _TYPES_OF_BLOCKS:
        types = getattr(config, name, None)
        if isinstance(types, list):
            setattr(config, name, types[:blocks])
    config.num_hidden_layers = blocks
    return config


def load_network(
    source: str,
    config: Any,
    *,
    revision: str | None,
    dtype: torch.dtype,
    is_part: bool,
    trust_remote_code: bool,
    weights: Mapping[str, Any] = MappingProxyType({}),
) -> nn.Module:
    """Load the base network, without the vocabulary head.

    Args:
        source: Folder or hub id.
        config: Configuration of the text network, from `cut_config`.
        revision: Commit of a hub id.
        dtype: The type of computation.
        is_part: Whether the checkpoint has other networks too, such as vision.
        trust_remote_code: Whether code that comes with the weights may run.
        weights: The options of `devices.weights_map`.

    Raises:
        ConfigError: Weights that it needs are missing.
    """
    network, report = AutoModel.from_pretrained(
        source,
        config=config,
        revision=revision,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        output_loading_info=True,
        key_mapping=_TEXT_PART if is_part else None,
        **weights,
    )
    missing = [k for k in report["missing_keys"] if not k.startswith(_MAY_BE_MISSING)]
    if missing or report["mismatched_keys"]:
        raise ConfigError(
            f"the weights of {source} don't fit its configuration: {len(missing)} tensors are "
            f"missing ({', '.join(sorted(missing)[:3])}), {len(report['mismatched_keys'])} are of "
            "another shape; use a complete checkpoint"
        )
    evaluated: nn.Module = network.eval().requires_grad_(False)
    return evaluated


def find_blocks(network: nn.Module, count: int) -> nn.ModuleList:
    """The list of the network's blocks: the outermost list of that many modules.

    Raises:
        ConfigError: There is no such list, for example where blocks share their weights.
    """
    lists = [
        (name.count("."), name, module)
        for name, module in network.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count
    ]
    if not lists:
        raise ConfigError(
            f"{type(network).__name__} has no list of its {count} blocks, so its layers can't be "
            "read; choose another encoder"
        )
    return min(lists, key=lambda entry: entry[:2])[2]


def keep_blocks(blocks: nn.ModuleList, count: int) -> None:
    """Drop the blocks after the first `count`; they are never reached."""
    for number in range(count, len(blocks)):
        blocks[number] = nn.Identity()


@final
@dataclass(frozen=True, eq=False)
class EncoderDescription:
    """What is known of an encoder before its weights are loaded.

    Attributes:
        made_by: The provenance of its states.
        tokenizer: Its tokenizer.
        text: The configuration of its text network.
        is_part: Whether the checkpoint has other networks too, such as vision.
        commit: The hub's commit; None for a folder.
    """

    made_by: Provenance
    tokenizer: Any
    text: Any
    is_part: bool
    commit: str | None


def describe_encoder(request: EncoderRequest, dtype: torch.dtype) -> EncoderDescription:
    """Load the configuration and the tokenizer of a `transformers` network.

    Raises:
        ConfigError: It can't be read at prefill, or an option is invalid.
        ProvenanceError: It isn't the expected encoder.
    """
    config, tokenizer = config_and_tokenizer(request)
    commit = commit_of(request, "config.json")
    text = text_config(config)
    if hasattr(config, "quantization_config"):
        text.quantization_config = config.quantization_config
    files = tokenizer_files(request.source, commit)
    made_by = provenance_of(request, text, tokenizer, files, commit, dtype_name(dtype))
    if request.expected is not None:
        request.expected.require(made_by, what=f"the encoder {request.source}")
    return EncoderDescription(made_by, tokenizer, text, text is not config, commit)


def load_hub_encoder(request: EncoderRequest) -> HubEncoder | TokenizingEncoder:
    """Load a `transformers` network with its tokenizer as an encoder, or only its tokenizer.

    Raises:
        ConfigError: It can't be found or reached, or an option is invalid.
        ProvenanceError: It isn't the expected encoder.
    """
    prepare_loading(request)
    devices = devices_of(request.device)
    device = devices[0]
    if device.type == "cpu":
        keep_torch_within_quota()
    dtype = dtype_of(request.dtype, device)
    with hub_errors(request):
        description = describe_encoder(request, dtype)
        last = last_layer(request.layers, description.text.num_hidden_layers)
        if not request.with_weights:
            return TokenizingEncoder(description.made_by, description.tokenizer, last)
        cut = cut_config(description.text, max(last, 2))
        network = _load_to(devices, request, description, cut, dtype)
    blocks = find_blocks(network, cut.num_hidden_layers)
    keep_blocks(blocks, max(last, 2))
    if not _is_spread(network):
        network = move_to_device(network, device, request.source)
    fuse_blocks(network, blocks)
    most = request.batch_tokens or min(batch_tokens_on(d, cut, dtype) for d in devices)
    encoder = HubEncoder(description.made_by, description.tokenizer, network, blocks, last, most)
    if request.as_network:
        return encoder
    return pack_if_possible(
        encoder, batch_tokens=request.batch_tokens, compile_blocks=request.compile_blocks
    )


def _load_to(
    devices: tuple[torch.device, ...],
    request: EncoderRequest,
    description: EncoderDescription,
    config: Any,
    dtype: torch.dtype,
) -> nn.Module:
    """Load the network to its devices.

    Raises:
        ConfigError: It doesn't fit there.
    """
    weights = weights_map(devices, request.device)
    if len(devices) > 1 and not weights:
        raise ConfigError("weights on several GPUs need a package: pip install accelerate")
    try:
        network = load_network(
            request.source,
            config,
            revision=description.commit,
            dtype=dtype,
            is_part=description.is_part,
            trust_remote_code=request.trust_remote_code,
            weights=weights,
        )
    except torch.OutOfMemoryError:
        network = None
    if network is None or {"cpu", "disk"} & {*_device_names(network)}:
        raise too_large(devices, request.source)
    return network


def _device_names(network: Any) -> list[str]:
    """The kinds and numbers of the devices that parts of the network were loaded to."""
    return [str(place) for place in getattr(network, "hf_device_map", {}).values()]


def _is_spread(network: nn.Module) -> bool:
    return len(set(_device_names(network))) > 1


def pack_if_possible(
    encoder: HubEncoder, *, batch_tokens: int | None = None, compile_blocks: bool = True
) -> HubEncoder:
    """The encoder with packed prompts, if its family and its device allow that; else itself.

    Args:
        encoder: The encoder, whose network is set to run packed.
        batch_tokens: The most tokens in one batch; by default `PACKED_BATCH_TOKENS`, or those of
            the encoder if they are fewer.
        compile_blocks: Whether blocks may be compiled and short passes recorded.
    """
    dtype: torch.dtype = getattr(torch, encoder.made_by.dtype)
    packing = use_packing(encoder.network, encoder.device, dtype)
    if packing is None:
        return encoder
    tokens = batch_tokens or min(encoder.batch_tokens, PACKED_BATCH_TOKENS)
    made_by = replace(encoder.made_by, packed_by=packing.kernel)
    packed = replace(encoder, made_by=made_by, batch_tokens=tokens, packing=packing)
    if not compile_blocks or _is_spread(encoder.network):
        return packed
    count = min(encoder.last_layer, len(encoder.blocks))
    least = least_tokens(count, made_by.hidden_size)
    compiler = BlockCompiler(encoder.blocks, least_tokens=least)
    if encoder.device.type != "cuda":
        return replace(packed, compiler=compiler)
    read = partial(read_batch, encoder.network, encoder.blocks)
    return replace(packed, compiler=compiler, passes=RecordedPasses(packing, read))


_FACTS = "gguf.json"
_FORMAT = 2
"""The version of a folder of the cache; a folder of another version is made again."""
_MAGIC = b"GGUF"
_UNREADABLE = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What the loaders raise over an architecture, or sizes, that they don't know."""
_FREQUENCIES = "rope_freqs.weight"
_SCALED_BY_TRANSFORMERS = ("gpt-oss", "gpt_oss")


def load_gguf_encoder(request: EncoderRequest) -> HubEncoder | TokenizingEncoder:
    """Load an encoder from a GGUF file.

    Raises:
        ConfigError: The file can't be read, is of an architecture that `transformers` doesn't read
            from such files, or an option doesn't fit.
        MissingExtraError: The package `gguf` isn't installed, and the file isn't in the cache.
        ProvenanceError: It isn't the encoder that is expected.
    """
    prepare_loading(request)
    file = Path(request.source)
    dtype = dtype_of(request.dtype, torch_device(request.device))
    with hub_errors(request):
        revision = file_revision(file)
        folder = _dequantise_once(file, revision, dtype)
        facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
    folder_request = replace(
        request,
        source=str(folder),
        file_revision=revision,
        quantisation=facts["quantisation"],
    )
    return load_hub_encoder(folder_request)


def _dequantise_once(file: Path, revision: str, dtype: torch.dtype) -> Path:
    """The folder of the cache with the file's network in this type; made where it isn't there."""
    name = f"{revision.replace(':', '-')}-{dtype_name(dtype)}-{version('transformers')}"
    cache = default_cache() / "gguf"
    with writer_lock(cache, f"{name}.making", wait=True):
        if not _is_whole(cache / name):
            with replacing_folder(cache / name) as folder:
                _dequantise(file, folder, dtype)
    return cache / name


def _is_whole(folder: Path) -> bool:
    """Whether a folder of the cache is what was written there, by this version."""
    try:
        facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        return bool(
            facts["format"] == _FORMAT
            and isinstance(facts["quantisation"], str)
            and facts["content"] == folder_revision(folder)
        )
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _dequantise(file: Path, folder: Path, dtype: torch.dtype) -> None:
    from transformers import GgufConfig  # the first releases of transformers 5 lack it

    header = _GgufHeader.read(file)
    place, name = str(file.parent), file.name
    try:
        network = AutoModelForCausalLM.from_pretrained(
            place,
            gguf_file=name,
            dtype=dtype,
            quantization_config=GgufConfig(dequantize=True),
        )
        tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name)
    except _UNREADABLE as error:
        raise header.refusal(str(error)) from None
    _scale_positions(network.config, header)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    facts = {"format": _FORMAT, "quantisation": header.quantisation}
    write_json(folder / _FACTS, facts | {"content": folder_revision(folder)})


@dataclass(frozen=True, eq=False)
class _GgufHeader:
    """What a file says of its network.

    Attributes:
        file: The file.
        architecture: Such as `llama`.
        quantisation: The type that most weights have.
        scaling: How positions are scaled, such as `linear`; `none` for not at all.
        factor: By how much they are.
        slowed: By how much each frequency of the rotation is divided, where the file lists that.
    """

    file: Path
    architecture: str
    quantisation: str
    scaling: str
    factor: float
    slowed: NDArray[np.float32] | None

    @classmethod
    def read(cls, file: Path) -> "_GgufHeader":
        """Read it.

        Raises:
            ConfigError: It is no such file, or holds no network.
        """
        with file.open("rb") as stream:
            if stream.read(len(_MAGIC)) != _MAGIC:
                raise ConfigError(f"{file} is no GGUF file: it doesn't begin with GGUF")
        with optional_imports("an encoder in a GGUF file"):
            from gguf import GGUFReader
        try:
            reader = GGUFReader(file)
        except (IndexError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"{file} can't be read as a GGUF file: {error}; it may be cut short: fetch it again"
            ) from None
        architecture = _value(reader, "general.architecture", "")
        sizes: Counter[str] = Counter()
        for tensor in reader.tensors:
            sizes[tensor.tensor_type.name] += int(tensor.n_elements)
        if not architecture or not sizes:
            raise ConfigError(f"{file} holds no network: it has no architecture, or no tensors")
        tables = [tensor for tensor in reader.tensors if tensor.name.startswith("rope_")]
        freqs = [np.array(table.data, np.float32) for table in tables if table.name == _FREQUENCIES]
        scaling = f"{architecture}.rope.scaling"
        return cls(
            file,
            architecture,
            sizes.most_common(1)[0][0],
            str(_value(reader, f"{scaling}.type", tables[0].name if tables else "none")),
            float(_value(reader, f"{scaling}.factor", 1.0)),
            freqs[0] if freqs else None,
        )

    def refusal(self, reason: str) -> ConfigError:
        """The error for what `transformers` can't read."""
        return ConfigError(
            f"{self.file} holds a network of the architecture {self.architecture!r} "
            f"({self.quantisation}), which transformers {version('transformers')} can't read from "
            f"such a file: {reason}; name another file, or the folder or hub id of the original"
        )


def _value(reader: Any, key: str, default: Any) -> Any:
    field = reader.get_field(key)
    return default if field is None else field.contents()


def _scale_positions(config: Any, header: _GgufHeader) -> None:
    """Have the configuration scale positions as the file says; `transformers` doesn't look for it.

    Raises:
        ConfigError: It is done in a way that isn't known here.
    """
    is_plain = header.scaling == "none" and header.slowed is None
    if is_plain or header.architecture in _SCALED_BY_TRANSFORMERS:
        return
    if getattr(config, "rope_parameters", None) is None:
        raise header.refusal(f"its positions are scaled by {header.scaling}")
    base = config.rope_parameters.get("full_attention", config.rope_parameters)
    if header.slowed is not None:
        base |= _llama3(float(header.slowed.max()))
        frequencies = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))[0]
        width = 2 * len(frequencies)
        plain = base["rope_theta"] ** (-torch.arange(0, width, 2) / width)
        if not np.allclose(plain / frequencies, header.slowed, rtol=1e-3):
            raise header.refusal("its positions are scaled in a way of its own")
    elif header.scaling == "linear":
        base |= {"rope_type": "linear", "factor": header.factor}
    else:
        raise header.refusal(f"its positions are scaled by {header.scaling}")


def _llama3(factor: float) -> dict[str, Any]:
    """How Llama 3.1 and later scale positions; files hold the frequencies that come of it."""
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
