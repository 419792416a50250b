"""`prefill-router encode`: encodes a dataset's prompts into a store of states."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from prefill_router.cli import options as opt
from prefill_router.cli.application import app, err, out, print_json
from prefill_router.cli.commands import UsageError, parse_choice
from prefill_router.cli.options import with_engine, worker_range
from prefill_router.files import default_cache
from prefill_router.memory import peak_memory
from prefill_router.options import AT_LEAST_ONE
from prefill_router.progress import BarProgress
from prefill_router.remote import PathOrUrl

if TYPE_CHECKING:
    from prefill_router.activations import Pooling, Provenance, Rounding, Site
    from prefill_router.encoders import (
        Encoder,
        EncoderSource,
        EncodingPlan,
        EncodingReport,
        VllmStates,
    )
    from prefill_router.engines import RayEngine

_LAYERS = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
_SHARD = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


@app.command()
@with_engine
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
            help="minilm, smollm2, minipool, a folder, a .gguf file or a hub id. For "
            "embeddings: sentence:NAME, or endpoint:MODEL@URL. For perplexity and "
            "related numbers: signals:NAME.",
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
        int | None, AT_LEAST_ONE, typer.Option(help="Longer prompts are truncated to this length.")
    ] = None,
    batch_tokens: Annotated[
        int | None, AT_LEAST_ONE, typer.Option(help="Tokens in one batch, padding included.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Compute in float32, bfloat16 or float16; by default what is fastest."),
    ] = None,
    store_dtype: Annotated[
        str, typer.Option(help="Keep states as bfloat16, float16 or float32.")
    ] = "bfloat16",
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:0,cuda:1, auto; by default a GPU.")
    ] = None,
    threads: Annotated[
        int | None,
        AT_LEAST_ONE,
        typer.Option(help="Batches at once on a CPU, a thread each; by default one per core."),
    ] = None,
    shard: Annotated[
        str, typer.Option(help="i/n: this is the i-th, from 0, of n processes that share the work.")
    ] = "0/1",
    trust_remote_code: Annotated[
        bool,
        typer.Option("--trust-remote-code", help="Allow code that comes with the weights to run."),
    ] = False,
    compile_blocks: Annotated[
        bool,
        typer.Option(
            "--compile/--no-compile",
            help="Compile blocks on a GPU, if there is enough work for this to save time.",
        ),
    ] = True,
    from_vllm: Annotated[
        Path | None,
        typer.Option(help="Read the states that vLLM's hidden-states connector wrote here."),
    ] = None,
    write_prompts: Annotated[
        Path | None,
        typer.Option(
            help="Write the tokens of the prompts that vLLM has yet to read here, and stop."
        ),
    ] = None,
    gpu_workers: Annotated[
        str | None,
        typer.Option(help="GPU workers of --engine ray, one GPU each, in addition to --workers."),
    ] = None,
    json: opt.AsDocument = False,
    engine: "RayEngine | None" = None,
) -> None:
    """Read every prompt with an encoder and keep its hidden states.

    You can interrupt it at any moment; the same command goes on from there. Several processes or
    machines can share the work: give each the same --out and a --shard of its own, 0/4 to 3/4, or
    use --engine.

    With --from-vllm the encoder is run by vLLM instead; --layers are those that it extracts.

    Example: prefill-router encode data/mmlu_pro --encoder minilm --layers all --out states/minilm
    """
    from prefill_router.activations import ROUNDINGS
    from prefill_router.data import open_queries
    from prefill_router.encoders import TEMPLATES, EncoderSource, load_encoder, plan_encoding

    _check_vllm(from_vllm, layers, write_prompts, computing=device or batch_tokens or engine)
    part, numbers = _read_shard(shard), _read_layers(layers)
    poolings = _choose_poolings(pooling, encoder)
    keep = parse_choice("--store-dtype", store_dtype, ROUNDINGS)
    kind = parse_choice("--template", template, TEMPLATES)
    gpus = _gpu_workers(engine, gpu_workers, device)
    _check_threads(engine, threads)
    computed = _choose_dtype(dtype, gpus)
    queries, progress = open_queries(dataset), BarProgress(console=err)
    network = load_encoder(
        encoder,
        revision=revision,
        template=kind,
        max_tokens=max_tokens,
        dtype=computed,
        device=device if engine is None else "cpu",
        layers=numbers,
        batch_tokens=batch_tokens,
        trust_remote_code=trust_remote_code,
        compile_blocks=compile_blocks,
        with_weights=engine is None,
        vllm_folder=from_vllm,
        progress=progress,
    )
    vllm = None if from_vllm is None else cast("VllmStates", network)
    sites = _choose_sites(network, layers, poolings)
    plan = plan_encoding(
        *(queries, network, store),
        sites=sites,
        shard=part,
        rounding=keep,
        cache=default_cache(),
        progress=progress,
    )
    if vllm is not None:
        plan, lacking = _with_files(vllm, plan, write_prompts)
        if write_prompts is not None:
            return
    _print_plan(plan, network.provenance)
    source = EncoderSource.of(
        *(network, encoder, numbers, batch_tokens),
        trust_remote_code=trust_remote_code,
        compile_blocks=compile_blocks,
    )
    report = _run_plan(plan, network, source, engine, gpus, threads)
    _print_report(plan, report, network, as_json=json)
    if vllm is not None:
        vllm.require_files(lacking, with_file=plan.in_store + plan.left)


def _print_report(
    plan: "EncodingPlan", report: "EncodingReport", network: "Encoder", *, as_json: bool
) -> None:
    if as_json:
        bill = {"billed_tokens": network.billed_tokens}
        print_json(_summarise_run(plan, report, network.provenance) | bill)
        return
    out.print(
        f"encoded {report.prompts:,} prompts, {report.tokens:,} tokens, in "
        f"{report.seconds:.1f} s: {report.tokens_per_second:,.0f} tokens/s, {_memory()}"
    )
    if network.billed_tokens is not None:
        out.print(f"the endpoint read {network.billed_tokens:,} tokens")


def _check_vllm(
    folder: Path | None, layers: str | None, prompts: Path | None, *, computing: object
) -> None:
    """Check the options of states from vLLM.

    Raises:
        UsageError: The layers or the folder aren't named, the folder isn't there, or an option is
            for states that are computed here.
    """
    if folder is None and prompts is None:
        return
    if folder is None:
        raise UsageError("--write-prompts needs --from-vllm, the folder that vLLM will write to")
    if layers is None:
        raise UsageError(
            "--from-vllm needs --layers, since vLLM's files don't say which layers they hold; "
            "give the numbers in eagle_aux_hidden_state_layer_ids"
        )
    if computing is not None:
        raise UsageError(
            "--device, --batch-tokens and --engine can't be used with --from-vllm, since vLLM "
            "has computed the states already; leave them out"
        )
    if prompts is None and not folder.is_dir():
        raise UsageError(f"--from-vllm is {folder}, and there is no such folder")


def _with_files(
    vllm: "VllmStates", plan: "EncodingPlan", write_prompts: Path | None
) -> tuple["EncodingPlan", "EncodingPlan"]:
    """The parts of a plan with and without files of vLLM; the prompts of the latter are written.

    Raises:
        StoreError: Nothing is left to read, no prompts are to be written, and some lack a file.
    """
    from prefill_router.encoders import write_vllm_prompts

    plan, lacking = vllm.split(plan)
    _print_files(vllm, plan, lacking)
    if write_prompts is not None:
        write_vllm_prompts(vllm, lacking, write_prompts)
    elif not plan.left:
        vllm.require_files(lacking, with_file=plan.in_store)
    return plan, lacking


def _print_files(vllm: "VllmStates", plan: "EncodingPlan", lacking: "EncodingPlan") -> None:
    longest = max((int(lacking.table.lengths[chunk].max()) for chunk in lacking.chunks), default=0)
    err.say(
        f"{len(vllm.names):,} files in {vllm.folder}, for {plan.left:,} of the prompts that are "
        f"left; {lacking.left:,} prompts have no file, the longest of {longest:,} tokens"
    )


def _gpu_workers(
    engine: "RayEngine | None", text: str | None, device: str | None
) -> tuple[int, int]:
    if engine is None and text is not None:
        raise UsageError("--gpu-workers is an option of --engine ray; add that, or leave it out")
    if engine is not None and device is not None:
        raise UsageError("with --engine ray leave out --device; --gpu-workers have a GPU each")
    return worker_range("--gpu-workers", text) or (0, 0)


def _check_threads(engine: "RayEngine | None", threads: int | None) -> None:
    if engine is not None and threads is not None:
        raise UsageError(
            "--threads can't be used with --engine ray; leave it out, and give "
            "the threads of each worker with --worker-cpus"
        )


def _choose_dtype(text: str | None, gpus: tuple[int, int]) -> "Rounding | None":
    """The type to compute in: as given, or that of GPUs, which this process itself may lack."""
    from prefill_router.activations import ROUNDINGS

    if text is None:
        return "bfloat16" if gpus[1] else None
    return parse_choice("--dtype", text, ROUNDINGS)


def _run_plan(
    plan: "EncodingPlan",
    network: "Encoder",
    source: "EncoderSource",
    engine: "RayEngine | None",
    gpus: tuple[int, int],
    threads: int | None,
) -> "EncodingReport":
    from prefill_router.encoders import default_threads, run_encoding, run_encoding_on

    bar = BarProgress(console=err)
    if engine is None:
        network = network.with_workers(threads or default_threads())
        _print_workers(network)
        return run_encoding(plan, network, workers=network.workers, progress=bar)
    return run_encoding_on(engine, plan, source, gpu_workers=gpus, progress=bar)


def _print_workers(network: "Encoder") -> None:
    if network.workers > 1:
        err.print(
            f"{network.workers} batches at once, each by one thread; they share the weights "
            f"({_memory()} so far)"
        )


def _memory() -> str:
    """The most memory that this process has had, in words."""
    peak = peak_memory()
    return "memory unknown" if peak is None else f"{peak / 1e6:,.0f} MB of memory"


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
        f"{plan.in_store:,} are in the store; {plan.left:,} are left for this process: "
        f"{plan.tokens_left:,} tokens, {plan.bytes_left / 1e6:,.1f} MB of disk"
    )


def _summarise_run(
    plan: "EncodingPlan", report: "EncodingReport", made_by: "Provenance"
) -> dict[str, Any]:
    return {
        "store": str(plan.out),
        "provenance": made_by.to_dict(),
        "sites": [site.name for site in plan.layout.sites],
        "store_dtype": plan.layout.rounding,
        "prompts": plan.prompts,
        "truncated": plan.truncated,
        "already_stored": plan.in_store,
        "encoded": report.prompts,
        "tokens": report.tokens,
        "bytes": plan.bytes_left,
        "seconds": report.seconds,
        "tokens_per_second": report.tokens_per_second,
        "workers": report.workers,
        "peak_memory_bytes": peak_memory(),
    }


def _choose_poolings(text: str, encoder: str) -> "list[Pooling]":
    """The poolings to keep.

    Raises:
        UsageError: The encoder outputs one vector, and the mean over a part of its tokens is asked.
    """
    from prefill_router.encoders import gives_own_vectors

    poolings = opt.parse_poolings(text)
    if "rest" in poolings and gives_own_vectors(encoder):
        raise UsageError(
            "--pooling rest needs the states of tokens, and sentence:, endpoint: and signals: "
            "encoders have one vector for a whole prompt; leave out --pooling, or choose "
            "another encoder"
        )
    return poolings


def _choose_sites(
    encoder: "Encoder", layers: str | None, poolings: Sequence["Pooling"]
) -> list["Site"]:
    """The sites to keep: those that are asked for, or all of an encoder with its own vectors."""
    from prefill_router.activations import Site
    from prefill_router.encoders import candidate_layers, gives_own_vectors

    if gives_own_vectors(encoder.provenance.encoder):
        return list(encoder.sites)
    count = encoder.provenance.num_layers
    default = tuple(range(count + 1)) if layers == "all" else candidate_layers(count)
    return [Site(layer, p) for layer in _read_layers(layers) or default for p in poolings]


def _read_layers(layers: str | None) -> tuple[int, ...] | None:
    """Layer numbers of a text such as `3-6` or `0,4,8`; None where they depend on the encoder."""
    if layers is None or layers == "all":
        return None
    numbers: set[int] = set()
    for part in layers.split(","):
        match = _LAYERS.fullmatch(part.strip())
        if not match:
            raise UsageError(f"--layers is {layers!r}; write them like 3-6, 0,4,8 or all")
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    if not numbers:
        raise UsageError(f"--layers {layers!r} holds no layer; write them like 3-6")
    return tuple(sorted(numbers))


def _read_shard(text: str) -> tuple[int, int]:
    match = _SHARD.fullmatch(text)
    if not match or int(match[1]) >= int(match[2]):
        raise UsageError(f"--shard is {text!r}; of 4 processes they are 0/4, 1/4, 2/4 and 3/4")
    return int(match[1]), int(match[2])
