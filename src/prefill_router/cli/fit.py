"""`prefill-router fit`: scored answers and states become a router."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from prefill_router.cli.app import app, err, out, print_json
from prefill_router.cli.poolings import parse_poolings
from prefill_router.data import load_split, read_dataset
from prefill_router.errors import ConfigError
from prefill_router.progress import BarProgress

if TYPE_CHECKING:
    from prefill_router.fitting import FitConfig, RouterFit
    from prefill_router.layers import Pinned


@app.command()
def fit(
    data: Annotated[Path, typer.Argument(metavar="DIR", help="The dataset's folder.")],
    store: Annotated[list[Path], typer.Option(help="A finished store; may be given again.")],
    to: Annotated[Path, typer.Option("--out", help="The router's folder.")],
    mode: Annotated[
        str, typer.Option(help="One encoder for all targets (single), per_model, or auto.")
    ] = "single",
    select: Annotated[
        str, typer.Option(help="fisher, grid, or a site such as mean.5 for all targets.")
    ] = "fisher",
    pin: Annotated[
        list[str] | None,
        typer.Option(help="TARGET=SITE, for each target; instead of --select."),
    ] = None,
    scope: Annotated[
        str, typer.Option(help="A site for each target, or one for the pool.")
    ] = "target",
    dim: Annotated[int, typer.Option(help="PCA components of each block.")] = 100,
    pooling: Annotated[str, typer.Option(help="last, mean, or both.")] = "last,mean",
    all_layers: Annotated[
        bool, typer.Option("--all-layers", help="Consider layers below the middle too.")
    ] = False,
    assign: Annotated[
        list[str] | None, typer.Option(help="For per_model: TARGET=ENCODER; may be given again.")
    ] = None,
    split_file: Annotated[
        Path | None, typer.Option("--split", help="A split drawn before; else one is drawn.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the split and of the training.")] = 0,
    assume_output_tokens: Annotated[
        float | None, typer.Option(help="For targets with prices and no output counts.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
) -> None:
    """Fit a router on the train part of a dataset and judge it on the test part.

    Example: prefill-router fit answers --store states --out router
    """
    from prefill_router.activations import ActivationStore
    from prefill_router.cli.headline import show_headline
    from prefill_router.fitting import fit_router
    from prefill_router.router.storage import check_replaceable

    check_replaceable(to)
    config = _config(
        mode, select, pin, scope, dim, pooling, all_layers, assign, seed, assume_output_tokens
    )
    drawn = None if split_file is None else load_split(split_file)
    stores = [ActivationStore.open(path) for path in store]
    fitted = fit_router(
        read_dataset(data), stores, config=config, drawn=drawn, progress=BarProgress(console=err)
    )
    fitted.router.save(to)
    if as_json:
        print_json({name: value.to_dict() for name, value in fitted.evaluation.headline.items()})
        return
    _tell(fitted)
    show_headline(fitted.evaluation)
    out.print(f"router: {to}", soft_wrap=True)


def _config(
    mode: str,
    select: str,
    pin: list[str] | None,
    scope: str,
    dim: int,
    pooling: str,
    all_layers: bool,
    assign: list[str] | None,
    seed: int,
    assume_output_tokens: float | None,
) -> "FitConfig":
    from prefill_router.fitting import FitConfig
    from prefill_router.predictors import TrunkConfig

    pinned = _pinned(select, pin)
    pairs = [pair.rpartition("=") for pair in assign or ()]
    return FitConfig(
        mode=cast(
            Literal["single", "per_model", "auto"],
            _one_of(mode, "mode", "single", "per_model", "auto"),
        ),
        method="pinned" if pinned is not None else cast(Literal["fisher", "grid"], select),
        scope=cast(Literal["target", "pool"], _one_of(scope, "scope", "target", "pool")),
        dim=dim,
        poolings=parse_poolings(pooling),
        all_layers=all_layers,
        pinned=pinned,
        assignments={target: encoder for target, _, encoder in pairs},
        trunk=TrunkConfig(seed=seed),
        assumed_output_tokens=assume_output_tokens,
        seed=seed,
    )


def _pinned(select: str, pin: list[str] | None) -> "Pinned | None":
    """The site of all targets, or of each; None where they are selected."""
    from prefill_router.activations import Site

    if not pin:
        return None if select in ("fisher", "grid") else Site.parse(select)
    if select != "fisher":  # the default
        raise ConfigError(f"--pin and --select {select} are both given; give one of them")
    pairs = [pair.rpartition("=") for pair in pin]
    return {target: Site.parse(site) for target, _, site in pairs}


def _one_of(value: str, option: str, *choices: str) -> str:
    if value not in choices:
        raise ConfigError(f"--{option} is {value!r}; it must be one of {list(choices)}")
    return value


def _tell(fitted: "RouterFit") -> None:
    features = fitted.router.features
    for block in features.blocks:
        readers = [
            n
            for n, b in zip(features.targets, features.block_of_target(), strict=True)
            if b is block
        ]
        out.print(
            f"{len(readers)} targets read {block.provenance.encoder} {block.site.name}, "
            f"PCA {block.dim}",
            soft_wrap=True,
        )
    for note in fitted.router.record.notes:
        out.print(f"note: {note}", soft_wrap=True)
