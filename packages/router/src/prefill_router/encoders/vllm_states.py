"""Hidden states that vLLM computed, pooled from the files of its hidden-states connector.

The connector writes one safetensors file per request: `hidden_states` [token, layer, hidden] and
`token_ids` [token]. Layer l is the stream after l blocks, as it is here, but the files don't name
their layers, nor the model. A prompt's file is the one that has exactly its tokens.

What vLLM doesn't compute it leaves as it was in its cache: zeros, or another request's states. So
each file is checked against its prompt before it is pooled, one file at a time.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from prefill_router import files
from prefill_router.activations import Provenance, Site
from prefill_router.data import Query
from prefill_router.encoders.base import Batch, NetworkEncoder
from prefill_router.encoders.devices import dtype_name, dtype_of
from prefill_router.encoders.encoder_names import EncoderRequest
from prefill_router.encoders.hub import TokenBatch
from prefill_router.encoders.pretrained import describe_encoder, hub_errors, prepare_loading
from prefill_router.encoders.provenance import last_layer
from prefill_router.encoders.run import EncodingPlan
from prefill_router.encoders.tokenisation import TokenizedPrompt
from prefill_router.errors import ConfigError, CorruptError, StoreError
from prefill_router.progress import Progress, SilentProgress
from prefill_router.short_repr import short_repr

VLLM = "vllm"
"""The name of vLLM in the provenance of states (`Provenance.computed_by`)."""
STATES, TOKENS = "hidden_states", "token_ids"
"""The names of the connector's tensors."""
PROMPT = "prompt_token_ids"
"""The name of a prompt's tokens in what vLLM generates from."""
_SUFFIX = ".safetensors"
_DEFAULT_DTYPE = "bfloat16"


@short_repr
@final
@dataclass(frozen=True, eq=False)
class VllmStates(NetworkEncoder):
    """An encoder whose states vLLM has computed. Made by `load_vllm_states`.

    Attributes:
        made_by: The provenance of the states.
        tokenizer: The network's tokenizer.
        read_layers: The layers that vLLM had to extract, ascending.
        folder: The connector's folder.
        names: The file of each sequence of tokens, by its digest.
    """

    made_by: Provenance
    tokenizer: Any
    read_layers: tuple[int, ...]
    folder: Path
    names: Mapping[bytes, str]

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that vLLM had to extract."""
        return self.read_layers

    def read_batches(
        self, prompts: Sequence[TokenizedPrompt], sites: Sequence[Site]
    ) -> Iterator[Batch]:
        """The states of one prompt at a time.

        Raises:
            StoreError: A prompt has no file.
            CorruptError: A file isn't one of this prompt, model and choice of layers, or vLLM
                didn't compute all that is in it.
        """
        for number, prompt in enumerate(prompts):
            yield [number], self._pool_states(prompt, sites)[:, None]

    def split(self, plan: EncodingPlan) -> tuple[EncodingPlan, EncodingPlan]:
        """The part of a plan whose prompts have files, and the part whose prompts have none."""
        chunks_with_flags = [
            (chunk, self._have_files(plan.queries_of(chunk))) for chunk in plan.chunks
        ]
        parts = (
            [chunk[flags == has_file] for chunk, flags in chunks_with_flags]
            for has_file in (True, False)
        )
        with_files, lacking = (tuple(filter(len, chunks)) for chunks in parts)
        return replace(plan, chunks=with_files), replace(plan, chunks=lacking)

    def require_files(self, lacking: EncodingPlan, *, with_file: int) -> None:
        """Check that no prompt lacks a file.

        Args:
            lacking: The part of the plan whose prompts have none.
            with_file: The number of prompts that have one, or are in the store.

        Raises:
            StoreError: Some do; the message says how to get their files.
        """
        if not lacking.left:
            return
        fix = "write their tokens with --write-prompts, run vLLM on them, and repeat this command"
        if self.names and not with_file:
            fix = (
                f"none of its {len(self.names):,} files has the tokens of one of these prompts: "
                "give the --encoder, --revision, --template and --max-tokens of --write-prompts"
            )
        raise StoreError(
            f"{lacking.left:,} prompts have no file in {self.folder} and aren't in the store; {fix}"
        )

    def _have_files(self, queries: Sequence[Query]) -> NDArray[np.bool_]:
        digests = (_digest(prompt.ids) for prompt in self.tokenize(queries))
        return np.fromiter((digest in self.names for digest in digests), dtype=np.bool_)

    def _pool_states(self, prompt: TokenizedPrompt, sites: Sequence[Site]) -> NDArray[np.float32]:
        """The states of one prompt, [site, hidden]."""
        name = self.names.get(_digest(prompt.ids))
        if name is None:
            raise StoreError(f"{self.folder} has no file of query {prompt.query_id!r}'s tokens")
        with _open_file(self.folder / name) as file:
            ids, states = file.get_tensor(TOKENS), file.get_tensor(STATES)
        self._check(self.folder / name, prompt, ids, states)
        count = len(ids)
        batch = TokenBatch(ids[None], torch.ones_like(ids)[None], torch.tensor([count]), False)
        at = {layer: number for number, layer in enumerate(self.read_layers)}
        pooled = [batch.pool(states[None, :, at[site.layer]], site.pooling) for site in sites]
        rows: NDArray[np.float32] = torch.cat(pooled).numpy()
        return rows

    def _check(self, path: Path, prompt: TokenizedPrompt, ids: Tensor, states: Tensor) -> None:
        """Check that vLLM computed these states, all of them, for this prompt.

        Raises:
            CorruptError: It didn't.
        """

        def refuse(reason: str) -> NoReturn:
            raise CorruptError(f"{path}, of query {prompt.query_id!r}: {reason}")

        if not np.array_equal(ids.numpy(), prompt.ids):
            refuse("it has changed since the folder was listed; run the command again")
        if states.ndim != 3:
            refuse(f"its states have {states.ndim} axes instead of [token, layer, hidden]")
        tokens, layers, hidden = states.shape
        dtype = dtype_name(states.dtype)
        if tokens != len(ids):
            refuse(f"it has the states of {tokens:,} of {len(ids):,} tokens; {_CACHED}")
        if layers != len(self.read_layers):
            refuse(f"it has {layers} layers, and --layers names {len(self.read_layers)}")
        if hidden != self.made_by.hidden_size:
            refuse(
                f"its states are {hidden} wide, and those of {self.made_by.encoder} are "
                f"{self.made_by.hidden_size}; name the model that vLLM ran with --encoder"
            )
        if dtype != self.made_by.dtype:
            refuse(f"its states are {dtype}, and {self.made_by.dtype} is expected (--dtype)")
        if not states.isfinite().all():
            refuse("its states aren't all finite; run vLLM with another dtype, or a later vLLM")
        empty = int((~states.flatten(1).any(1)).sum())
        if empty:
            refuse(f"the states of {empty:,} of {tokens:,} tokens are only zeros; {_CACHED}")


_CACHED = (
    "turn off prefix caching and chunked prefill in vLLM, remove the file, and run vLLM on the "
    "prompt again; a hybrid network needs a vLLM of July 2026 or later"
)


def load_vllm_states(
    request: EncoderRequest, folder: Path, *, progress: Progress | None = None
) -> VllmStates:
    """List the connector's files, and load the tokenizer of the encoder that vLLM ran.

    Args:
        request: The requested encoder, whose `layers` are those that vLLM had to extract.
        folder: The connector's folder; one that doesn't exist has no files.
        progress: Shows the number of files listed.

    Raises:
        ConfigError: The encoder can't be found, or an option is invalid.
        CorruptError: A file isn't one of the connector, or isn't complete.
    """
    prepare_loading(request)
    names = _list_files(folder, progress or SilentProgress())
    dtype = request.dtype or _dtype(folder, names)
    with hub_errors(request):
        description = describe_encoder(request, dtype_of(dtype, torch.device("cpu")))
        last_layer(request.layers, description.text.num_hidden_layers)
    count = description.made_by.num_layers
    layers = range(count + 1) if request.layers is None else request.layers
    made_by = replace(description.made_by, computed_by=VLLM)
    return VllmStates(made_by, description.tokenizer, tuple(sorted(set(layers))), folder, names)


def write_vllm_prompts(vllm: VllmStates, plan: EncodingPlan, path: Path) -> None:
    """Write the tokens of a plan's prompts for vLLM: lines of JSON objects that it generates from.

    Raises:
        ConfigError: The file holds something else.
    """
    begin = f'{{"{PROMPT}": '
    if path.exists() and path.read_bytes()[: len(begin)] not in (b"", begin.encode()):
        raise ConfigError(f"{path} isn't a file of prompts for vLLM; name another file")
    with files.replacing_file(path) as temporary, temporary.open("w", encoding="ascii") as file:
        for chunk in plan.chunks:
            for prompt in vllm.tokenize(plan.queries_of(chunk)):
                file.write(json.dumps({PROMPT: prompt.ids.tolist()}) + "\n")


def _list_files(folder: Path, progress: Progress) -> dict[bytes, str]:
    """The first file, by name, of each sequence of tokens."""
    names: list[str] = []
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.name.endswith(_SUFFIX))
    names_by_digest: dict[bytes, str] = {}
    with progress.task("files", total=float(len(names))) as advance:
        for name in names:
            with _open_file(folder / name) as file:
                names_by_digest.setdefault(_digest(file.get_tensor(TOKENS).numpy()), name)
            advance(1)
    return names_by_digest


def _dtype(folder: Path, names: Mapping[bytes, str]) -> str:
    """The type of the first file's states; vLLM's usual one where there is no file."""
    for name in names.values():
        with _open_file(folder / name) as file:
            return str(file.get_slice(STATES)[:0].dtype).removeprefix("torch.")
    return _DEFAULT_DTYPE


@contextmanager
def _open_file(path: Path) -> Iterator[Any]:
    """A context in which a file of the connector is read.

    Raises:
        CorruptError: It isn't one of the connector, or isn't complete.
    """
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CorruptError(
            f"{path} isn't a complete file of vLLM's hidden-states connector ({error}); wait until "
            "vLLM has ended, or remove the file and run vLLM on its prompt again"
        ) from None


def _digest(ids: NDArray[Any]) -> bytes:
    """A digest of a sequence of tokens."""
    return hashlib.blake2b(ids.astype("<i4").tobytes(), digest_size=16).digest()
