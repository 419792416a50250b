"""`prefill-router encode`: encodes a dataset's prompts into a store of states."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from prefill_router.cli import options as opt
from prefill_router.cli.application import app, err, out, print_json
from prefill_router.cli.usage import UsageError, one_of
from prefill_router.progress import BarProgress
from prefill_router.remote import PathOrUrl

if TYPE_CHECKING:
    from prefill_router.activations import Pooling, Provenance, Site
    from prefill_router.encoders import (
        Encoder,
        EncodingPlan,
        EncodingReport,
    )

_LAYERS = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
_SHARD = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")
_Choice = TypeVar("_Choice", bound=str)


@app.command()
def encode(
    dataset: opt.DataFolder,
    store: Annotated[
        PathOrUrl,
        typer.Option(
            "--out",
            help="The store's folder: a new one, or one to resume.",
            parser=opt.path_or_url,
        ),
    ],
    encoder: Annotated[
        str,
        typer.Option(
            help="minilm, smollm2, minipool, a folder, a .gguf file or a hub id; sentence:NAME "
            "for embeddings, endpoint:MODEL@URL for those of an endpoint, signals:NAME for "
            "perplexity and the like.",
        ),
    ] = "minilm",
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")] = None,
    template: Annotated[
        str, typer.Option(help="chat (the tokenizer's chat template), plain, or auto.")
    ] = "auto",
    layers: Annotated[
        str | None,
        typer.Option(help="Such as 3-6, 0,4,8 or all; by default the upper half, ceil(L/2) to L."),
    ] = None,
    pooling: opt.Poolings = "last,mean",
    max_tokens: Annotated[
        int | None, typer.Option(help="Longer prompts are truncated to this length.")
    ] = None,
    batch_tokens: Annotated[
        int | None, typer.Option(help="Tokens in one batch, padding included.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Compute in float32, bfloat16 or float16; by default what is fastest."),
    ] = None,
    store_dtype: Annotated[
        str, typer.Option(help="Keep states as bfloat16, float16 or float32.")
    ] = "bfloat16",
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; by default a GPU.")] = None,
    shard: Annotated[
        str, typer.Option(help="i/n: this is the i-th, from 0, of n processes that share the work.")
    ] = "0/1",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let code that comes with the weights run.")
    ] = False,
    json: opt.AsDocument = False,
) -> None:
    """Read every prompt with an encoder and keep its hidden states.

    It can be interrupted at any moment; the same command goes on from there. Several processes or
    machines share the work with --shard 0/4 ... --shard 3/4 and the same --out.

    Example: prefill-router encode data/mmlu_pro --encoder minilm --layers all --out states/minilm
    """
    from prefill_router.activations import ROUNDINGS
    from prefill_router.data import read_dataset
    from prefill_router.encoders import TEMPLATES, load_encoder, plan_encoding, run_encoding

    part, numbers = _shard(shard), _numbers(layers)
    poolings = _poolings(pooling, encoder)
    keep = one_of("--store-dtype", store_dtype, ROUNDINGS)
    kind = one_of("--template", template, TEMPLATES)
    computed = None if dtype is None else one_of("--dtype", dtype, ROUNDINGS)
    queries = read_dataset(dataset)
    network = load_encoder(
        encoder,
        revision=revision,
        template=kind,
        max_tokens=max_tokens,
        dtype=computed,
        device=device,
        layers=numbers,
        batch_tokens=batch_tokens,
        trust_remote_code=trust_remote_code,
    )
    sites = _sites(network, layers, poolings)
    plan = plan_encoding(queries, network, store, sites=sites, shard=part, rounding=keep)
    _print_plan(plan, network.provenance)
    report = run_encoding(plan, network, progress=BarProgress(console=err))
    if json:
        bill = {"billed_tokens": network.billed_tokens}
        print_json(_summary(plan, report, network.provenance) | bill)
    else:
        out.print(
            f"encoded {report.prompts:,} prompts, {report.tokens:,} tokens, in "
            f"{report.seconds:.1f} s: {report.tokens_per_second:,.0f} tokens/s"
        )
        if network.billed_tokens is not None:
            out.print(f"the endpoint read {network.billed_tokens:,} tokens")


def _print_plan(plan: "EncodingPlan", made_by: "Provenance") -> None:
    from prefill_router.encoders import EncoderName

    err.print(
        f"{made_by.encoder} ({made_by.revision[:19]}), {made_by.template} prompts, "
        f"{made_by.dtype}, {len(plan.layout.sites)} sites x {made_by.hidden_size}"
    )
    err.print(
        f"{plan.prompts:,} prompts, {plan.total_tokens:,} tokens; "
        f"{plan.truncated:,} are longer than {made_by.max_tokens:,} tokens and lose their "
        f"{'end' if EncoderName.parse(made_by.encoder).scheme == 'sentence' else 'middle'}"
    )
    err.print(
        f"{plan.done:,} are in the store; {plan.left:,} are left for this process: "
        f"{plan.tokens_left:,} tokens, {plan.bytes_left / 1e6:,.1f} MB of disk"
    )


def _summary(
    plan: "EncodingPlan", report: "EncodingReport", made_by: "Provenance"
) -> dict[str, Any]:
    return {
        "store": str(plan.out),
        "provenance": made_by.to_dict(),
        "sites": [site.name for site in plan.layout.sites],
        "store_dtype": plan.layout.rounding,
        "prompts": plan.prompts,
        "truncated": plan.truncated,
        "already_stored": plan.done,
        "encoded": report.prompts,
        "tokens": report.tokens,
        "bytes": plan.bytes_left,
        "seconds": report.seconds,
        "tokens_per_second": report.tokens_per_second,
    }


def _poolings(text: str, encoder: str) -> "list[Pooling]":
    """The poolings to keep.

    Raises:
        UsageError: The encoder outputs one vector, and the mean over a part of its tokens is asked.
    """
    from prefill_router.encoders import gives_own_vectors

    poolings = opt.parse_poolings(text)
    if "rest" in poolings and gives_own_vectors(encoder):
        raise UsageError(
            "--pooling rest is a mean of tokens, and sentence:, endpoint: and signals: encoders "
            "output one vector for a whole prompt; leave out --pooling, or choose an encoder whose "
            "layers are read"
        )
    return poolings


def _sites(encoder: "Encoder", layers: str | None, poolings: Sequence["Pooling"]) -> list["Site"]:
    """The sites to keep: those that are asked for, or all of an encoder with its own vectors."""
    from prefill_router.activations import Site
    from prefill_router.encoders import candidate_layers, gives_own_vectors

    if gives_own_vectors(encoder.provenance.encoder):
        return list(encoder.sites)
    count = encoder.provenance.num_layers
    default = tuple(range(count + 1)) if layers == "all" else candidate_layers(count)
    return [Site(layer, p) for layer in _numbers(layers) or default for p in poolings]


def _numbers(layers: str | None) -> tuple[int, ...] | None:
    """Layer numbers of a text such as `3-6` or `0,4,8`; None where they depend on the encoder."""
    if layers is None or layers == "all":
        return None
    numbers: set[int] = set()
    for part in layers.split(","):
        found = _LAYERS.fullmatch(part.strip())
        if not found:
            raise UsageError(f"--layers is {layers!r}; write them like 3-6, 0,4,8 or all")
        numbers.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    if not numbers:
        raise UsageError(f"--layers {layers!r} holds no layer; write them like 3-6")
    return tuple(sorted(numbers))


def _shard(text: str) -> tuple[int, int]:
    found = _SHARD.fullmatch(text)
    if not found or int(found[1]) >= int(found[2]):
        raise UsageError(f"--shard is {text!r}; of 4 processes they are 0/4, 1/4, 2/4 and 3/4")
    return int(found[1]), int(found[2])
