"""`prefill-router layers` and `sweep`: which layer to read, and which encoder.

`layers` shows the geometry of stores by depth, and what their layers know; `sweep` compares
encoders by their probes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefill_router import files
from prefill_router.cli import options as opt
from prefill_router.cli.application import app, err, out, print_json
from prefill_router.progress import BarProgress
from prefill_router_lab.cli.typed_options import with_options
from prefill_router_lab.depth import DepthOptions, SweepOptions

if TYPE_CHECKING:
    from prefill_router.activations import Pooling
    from prefill_router.layers import Ablation, Survey
    from prefill_router_lab.depth import DepthProfile, EncoderSweep


@app.command()
@with_options
def layers(
    *,
    data: opt.DataFolder,
    store: opt.NeededStores,
    split_file: opt.SplitFile = None,
    options: DepthOptions,
    to: Annotated[
        Path | None, typer.Option("--out", help="A folder for figures, with their data as CSV.")
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show Fisher J, effective dimensionality and anisotropy by depth, and what the layers know.

    Only the train part is used. The second table has the layer that each criterion selects, with
    its mean five-fold probe AUC over targets. The third table has the AUC of probes and of
    neighbours' votes at every layer. The figures compare several stores, and show the probes within
    each subject.

    Example: prefill-router layers answers --store states --out figures
    """
    from prefill_router.data import read_dataset
    from prefill_router.layers import candidate_sites
    from prefill_router_lab.depth import depth_profile, encoder_labels

    if to is not None:
        files.check_place(to / "figure.png")
    stores = opt.open_stores(store)
    dataset = read_dataset(data)
    train = dataset.select(opt.load_or_draw_split(dataset, split_file, options.seed)["train"])
    poolings = options.poolings
    sites = [candidate_sites(s, poolings=poolings, all_layers=options.all_layers) for s in stores]
    for states, candidates in zip(stores, sites, strict=True):
        states.require(candidates[0], train.prompt_keys)  # before the first takes its time
    profiles = [
        depth_profile(
            states,
            train,
            options,
            sites=candidates,
            encoder=label,
            progress=BarProgress(console=err),
        )
        for states, candidates, label in zip(stores, sites, encoder_labels(stores), strict=True)
    ]
    ablations = [_ablate_poolings(profile, poolings) for profile in profiles]
    if to is not None:
        _draw_figures(profiles, to, ablations)
    if as_json:
        print_json(_make_document(profiles, ablations))
        return
    for profile, ways in zip(profiles, ablations, strict=True):
        _print_geometry(profile)
        _print_ablations(profile, ways)
    _print_readings(profiles)
    if to is not None:
        out.say(f"figures: {to}")


def _ablate_poolings(profile: "DepthProfile", poolings: "Sequence[Pooling]") -> "list[Ablation]":
    """The ablation over all candidates first, as `fit` chooses, then over those of each pooling."""
    from prefill_router.layers import ablation

    present = [p for p in poolings if any(site.pooling == p for site in profile.sites)]
    kinds = list(dict.fromkeys([tuple(present), *((p,) for p in present)]))
    dim = profile.survey.dim
    return [ablation(profile.survey, profile.grid, dim=dim, poolings=kind) for kind in kinds]


def _label_encoder(profiles: "list[DepthProfile]", profile: "DepthProfile") -> dict[str, str]:
    """The encoder of a row, where there are several."""
    return {"encoder": profile.encoder} if len(profiles) > 1 else {}


def _make_document(
    profiles: "list[DepthProfile]", ablations: "list[list[Ablation]]"
) -> dict[str, list[dict[str, Any]]]:
    each = list(zip(profiles, ablations, strict=True))
    return {
        "geometry": [
            _label_encoder(profiles, profile) | row
            for profile in profiles
            for row in profile.survey.rows()
        ],
        "ablation": [
            _label_encoder(profiles, profile) | a.to_dict() for profile, ways in each for a in ways
        ],
        "depth": [row for profile in profiles for row in profile.rows()],
    }


def _draw_figures(
    profiles: "list[DepthProfile]", to: Path, ablations: "list[list[Ablation]]"
) -> None:
    import polars as pl

    from prefill_router_lab.depth import draw_depth, draw_geometry

    draw_depth(profiles, to)
    if len(profiles) == 1:
        draw_geometry(profiles[0].survey, to, encoder=profiles[0].encoder)
    rows = [
        {
            **_label_encoder(profiles, profile),
            "poolings": "+".join(a.poolings),
            **{s.name: s.auc for s in a.selectors},
        }
        for profile, ways in zip(profiles, ablations, strict=True)
        for a in ways
    ]
    files.write_text(to / "ablation.csv", pl.DataFrame(rows).write_csv())


def _print_geometry(profile: "DepthProfile") -> None:
    from rich.table import Table

    survey = profile.survey
    table = Table(
        title=f"geometry of {len(survey.sites)} sites of {profile.encoder}, train part, "
        f"J on PCA-{survey.dim}"
    )
    for name in ("site", "Fisher J (mean)", "lowest", "highest", "best for", "d_eff", "anisotropy"):
        table.add_column(name, justify="left" if name == "site" else "right")
    best = _count_best_targets(survey)
    for i, row in enumerate(survey.rows()):
        js = [v for name, v in row.items() if name.startswith("fisher:") and v is not None]
        table.add_row(
            survey.sites[i].name,
            _format_number(row["fisher_mean"], 5),
            _format_number(min(js, default=None), 5),
            _format_number(max(js, default=None), 5),
            f"{best[i]} targets",
            _format_number(row["effective_dimensionality"], 1),
            _format_number(row["anisotropy"], 3),
        )
    out.print(table)


def _count_best_targets(survey: "Survey") -> list[int]:
    import numpy as np

    judged = survey.fisher[:, ~np.isnan(survey.fisher).any(axis=0)]
    best = judged.argmax(axis=0).tolist()
    return [best.count(i) for i in range(len(survey.sites))]


def _print_ablations(profile: "DepthProfile", ablations: "list[Ablation]") -> None:
    from rich.table import Table

    dim, count = ablations[0].dim, len(ablations[0].targets)
    table = Table(
        title=f"mean five-fold probe AUC at PCA-{dim} over {count} targets, {profile.encoder}"
    )
    table.add_column("candidates")
    for selector in ablations[0].selectors:
        table.add_column(selector.name, justify="right")
    for row in ablations:
        table.add_row(" and ".join(row.poolings), *(f"{s.auc:.4f}" for s in row.selectors))
    out.print(table)


def _print_readings(profiles: "list[DepthProfile]") -> None:
    from rich.table import Table

    table = Table(title="what layers know: mean AUC over targets on the train part")
    for name in ("encoder", "site", "depth", "probe, five-fold", "votes, leave-one-out"):
        table.add_column(name, justify="left" if name in ("encoder", "site") else "right")
    for profile in profiles:
        for row in profile.rows():
            if row["subject"] is None:
                table.add_row(
                    profile.encoder,
                    f"{row['pooling']}.{row['layer']}",
                    f"{row['depth']:.2f}",
                    _format_number(row["probe_auc"], 4),
                    _format_number(row["votes_auc"], 4),
                )
    out.print(table)


def _format_number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


@app.command()
@with_options
def sweep(
    *,
    data: opt.DataFolder,
    store: opt.NeededStores,
    to: Annotated[Path, typer.Option("--out", help="A folder for the heat map and its CSV.")],
    split_file: opt.SplitFile = None,
    options: SweepOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Compare encoders by the test AUC of a linear probe for every target.

    Each target is read at the layer of greatest Fisher J on the train part.

    Example: prefill-router sweep answers --store states-a --store states-b --out sweep
    """
    from prefill_router.data import read_dataset
    from prefill_router_lab.depth import draw_sweep, sweep as run

    files.check_place(to / "sweep.png")
    stores = opt.open_stores(store)
    dataset = read_dataset(data)
    parts = opt.load_or_draw_split(dataset, split_file, options.seed)
    result = run(
        stores,
        dataset.select(parts["train"]),
        dataset.select(parts["test"]),
        options,
        progress=BarProgress(console=err),
    )
    draw_sweep(result, to)
    if as_json:
        print_json(result.rows())
        return
    _print_sweep(result)
    out.say(f"heat map: {to}")


def _print_sweep(result: "EncoderSweep") -> None:
    from rich.table import Table

    table = Table(title="test AUC (site) of every target under every encoder")
    table.add_column("target")
    for encoder in result.encoders:
        table.add_column(encoder, justify="right")
    for k, target in enumerate(result.targets):
        cells = zip(result.auc[:, k], result.sites, strict=True)
        table.add_row(target, *(f"{auc:.4f} ({sites[k].name})" for auc, sites in cells))
    table.add_section()
    table.add_row("mean", *(f"{auc:.4f}" for auc in result.mean()))
    table.add_row(
        "mean, five-fold on train", *(f"{auc:.4f}" for auc in _average_cross_validated(result))
    )
    out.print(table)


def _average_cross_validated(result: "EncoderSweep") -> list[float]:
    from prefill_router.layers import mean_over_targets

    means: list[float] = mean_over_targets(result.cross_validated).tolist()
    return means
