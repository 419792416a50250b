"""Files of llama.cpp (GGUF), as Ollama and LM Studio keep them, dequantised once.

`transformers` reads such a file in tens of seconds, and what it gives computes in ordinary weights.
So these are written to a folder of the cache, in the type that is computed in, with the file's
configuration, tokenizer and chat template; from then on it is a local encoder like any other. Its
revision is the digest of the file, whatever the cache holds.
"""

import json
from collections import Counter
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from prefill_router.encoders.hub import HubEncoder
from prefill_router.encoders.names import EncoderRequest
from prefill_router.encoders.pretrained import hub_errors, load_hub_encoder, prepare
from prefill_router.encoders.provenance import device_of, dtype_of, file_revision
from prefill_router.errors import ConfigError
from prefill_router.files import default_cache, replacing_folder, write_json, writer_lock
from prefill_router.lazy_imports import optional_imports

_FACTS = "gguf.json"
_MAGIC = b"GGUF"
_UNREADABLE = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What the loaders raise over an architecture, or sizes, that they don't know."""
_FREQUENCIES = "rope_freqs.weight"
_SCALED_BY_TRANSFORMERS = ("gpt-oss", "gpt_oss")


def load_gguf_encoder(request: EncoderRequest) -> HubEncoder:
    """Load an encoder from a GGUF file.

    Raises:
        ConfigError: The file can't be read, is of an architecture that `transformers` doesn't read
            from such files, or an option doesn't fit.
        MissingExtraError: The package `gguf` isn't installed, and the file isn't in the cache.
        ProvenanceError: It isn't the encoder that is expected.
    """
    prepare(request)
    file = Path(request.source)
    dtype = dtype_of(request.dtype, device_of(request.device))
    with hub_errors(request):
        revision = file_revision(file)
        folder = _dequantised(file, revision, dtype)
        facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
    found = replace(
        request,
        source=str(folder),
        file_revision=revision,
        quantisation=facts["quantisation"],
    )
    return load_hub_encoder(found)


def _dequantised(file: Path, revision: str, dtype: torch.dtype) -> Path:
    """The folder of the cache with the file's network in this type; made where it isn't there."""
    kind = str(dtype).removeprefix("torch.")
    name = f"{revision.replace(':', '-')}-{kind}-{version('transformers')}"
    cache = default_cache() / "gguf"
    with writer_lock(cache, f"{name}.making", wait=True):
        if not (cache / name).is_dir():
            with replacing_folder(cache / name) as folder:
                _dequantise(file, folder, dtype)
    return cache / name


def _dequantise(file: Path, folder: Path, dtype: torch.dtype) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

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
    write_json(folder / _FACTS, {"quantisation": header.quantisation})


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
        with file.open("rb") as opened:
            if opened.read(len(_MAGIC)) != _MAGIC:
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
        tables = [one for one in reader.tensors if one.name.startswith("rope_")]
        freqs = [np.array(one.data, np.float32) for one in tables if one.name == _FREQUENCIES]
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
        found = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))[0]
        width = 2 * len(found)
        plain = base["rope_theta"] ** (-torch.arange(0, width, 2) / width)
        if not np.allclose(plain / found, header.slowed, rtol=1e-3):
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
