"""`prefill-router fit`: fits a router on scored answers and states."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import typer
from pydantic import Field

from prefill_router import files
from prefill_router.accelerator import compute_on
from prefill_router.cli import options as opt
from prefill_router.cli.application import app, err, format_count, out, print_json
from prefill_router.cli.commands import UsageError, by_name, parse_choice, usage_errors
from prefill_router.options import AT_LEAST_ONE, NOT_NEGATIVE
from prefill_router.progress import BarProgress
from prefill_router.remote import PathOrUrl

if TYPE_CHECKING:
    from prefill_router.activations import Activations
    from prefill_router.data import RoutingDataset, Split
    from prefill_router.evaluation import Goal, SettingRule
    from prefill_router.features import FeatureExtractor, PrefillConfig
    from prefill_router.fitting import Effort, FitConfig, Recipe, RouterFit
    from prefill_router.policy import FrugalCascade, Policy
    from prefill_router.router import EncoderSources, Router


@app.command()
def fit(
    data: opt.DataFolder,
    to: opt.RouterOut,
    store: opt.Stores = None,
    recipe: Annotated[
        Path | None,
        typer.Option(
            help="A YAML file with features, predictor and more, or paper for the paper's "
            "router. It replaces the options of features and predictor."
        ),
    ] = None,
    effort: Annotated[
        str | None,
        typer.Option(
            help="quick: fit a recipe as it is; normal: try a few on train rows (about two "
            "minutes); best: try more. The default is normal, if you give no recipe and "
            "no options of the features."
        ),
    ] = None,
    for_: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="switchyard: a router that `export --switchyard` can write. It replaces a recipe.",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="The policy: lambda, argmax, tolerance, threshold, tiered, cascade or "
            "frugal_cascade. With options, write it as in a recipe: '{kind: KIND, ...}'. "
            "It replaces the recipe's policy."
        ),
    ] = None,
    mode: Annotated[
        str, typer.Option(help="One encoder for all targets (single), per_model, or auto.")
    ] = "single",
    select: Annotated[
        str, typer.Option(help="fisher, grid, or a site such as mean.5 for all targets.")
    ] = "fisher",
    pin: Annotated[
        list[str] | None,
        typer.Option(help="TARGET=SITE, for each target. It replaces --select."),
    ] = None,
    scope: Annotated[
        str,
        typer.Option(help="target: select a site for each target; pool: one site for all targets."),
    ] = "target",
    dim: Annotated[int, AT_LEAST_ONE, typer.Option(help="PCA components of each block.")] = 100,
    pooling: opt.Poolings = "last,mean",
    all_layers: Annotated[
        bool, typer.Option("--all-layers", help="Consider layers of the lower half too.")
    ] = False,
    assign: Annotated[
        list[str] | None, typer.Option(help="For per_model: TARGET=ENCODER; repeatable.")
    ] = None,
    lose: Annotated[
        float | None,
        Field(ge=0, le=100),
        typer.Option(
            help="The most points of accuracy to lose to the best target, with one standard "
            "error added to the loss. The cheapest setting within this limit is used. By "
            "default 2."
        ),
    ] = None,
    goal: Annotated[
        str | None,
        typer.Option(
            help="accuracy: the most accurate setting; balanced: the same as --lose 2; "
            "savings: the same as --lose 5. It replaces --lose."
        ),
    ] = None,
    max_cost: Annotated[
        float | None,
        NOT_NEGATIVE,
        typer.Option(help="The most that a setting may cost, in US dollars per 1,000 queries."),
    ] = None,
    test: Annotated[
        float,
        Field(ge=0, le=0.5),
        typer.Option(help="The share of the queries to seal as a test part, such as 0.15."),
    ] = 0.0,
    split_file: opt.SplitFile = None,
    verdict: Annotated[
        bool,
        typer.Option(
            help="Judge it on all queries that it learns from: it is fitted five more times, "
            "each time without a fifth of them."
        ),
    ] = True,
    seed: Annotated[
        int, NOT_NEGATIVE, typer.Option(help="Seed of the split and of the training.")
    ] = 0,
    assume_output_tokens: Annotated[
        float | None,
        NOT_NEGATIVE,
        typer.Option(help="Tokens of an answer, for targets with prices but without token counts."),
    ] = None,
    encoder_folder: opt.EncoderFolders = None,
    device: opt.Device = None,
    overwrite: opt.Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
) -> None:
    """Fit a router on scored answers, and say whether it is worth it.

    Without a recipe, cross-validation chooses the best of a few on the states in the stores. The
    router learns from all queries, and is saved before it is judged. The verdict is by
    cross-fitting: every query is judged by a router that was fitted without it. A router from votes
    is judged in win rate. A part that --test or --split seals is judged as well.

    After an interruption the same command goes on from there. States that a recipe needs and that
    are in no store are encoded now, and kept in the cache.

    Example: prefill-router fit answers --store states --out router
    """
    from prefill_router.data import load_split, read_dataset
    from prefill_router.fitting import (
        FitConfig,
        check_same_fit,
        switchyard_recipe,
    )
    from prefill_router.router import check_replaceable

    with usage_errors():
        prefill = _make_prefill(mode, select, pin, scope, dim, pooling, all_layers, assign)
        policy_given = None if policy is None else _read_policy(policy)
        if for_ is not None:
            parse_choice("--for", for_, SERVED_BY)
            _refuse_others(prefill, [recipe, effort, policy])
        tried = None if for_ else _choose_effort(effort, prefill, recipe)
        rule = _setting_rule(lose, goal, max_cost)
        if split_file is not None and test:
            raise UsageError("--test and --split both seal a test part; give one of them")
    own_recipe = None if for_ else _make_recipe(data, prefill, recipe, store)
    check_replaceable(to)
    stores = opt.open_stores(store)
    config = FitConfig(
        recipe=_with_policy(own_recipe or switchyard_recipe(stores), policy_given),
        assumed_output_tokens=assume_output_tokens,
        seed=seed,
        effort=tried,
        setting=rule,
        test=test,
    )
    split = None if split_file is None else load_split(split_file)
    dataset = read_dataset(data)
    if not overwrite:
        check_same_fit(to, dataset, stores, config=config, split=split)
    sources = opt.sources(encoder_folder)
    with compute_on(device):
        fitted = _fit_and_save(
            dataset, stores, config, to, effort=tried, split=split, sources=sources, verdict=verdict
        )
    if verdict:
        opt.save_router(fitted.router, to)
    if as_json:
        print_json(_fit_dict(fitted))
    else:
        _show_fit(fitted, to)


def _fit_and_save(
    dataset: "RoutingDataset",
    stores: "Sequence[Activations]",
    config: "FitConfig",
    to: PathOrUrl,
    *,
    effort: "Effort | None",
    split: "Split | None",
    sources: "EncoderSources",
    verdict: bool,
) -> "RouterFit":
    """Fit with the recipe, or with the best of those that the effort tries; save before judging."""
    from prefill_router.fitting import fit_chosen, fit_router

    options: dict[str, Any] = {
        "config": config,
        "split": split,
        "sources": sources,
        "cache": files.default_cache(),
        "verdict": verdict,
        "save": _saver(to, judges=verdict),
        "progress": BarProgress(console=err),
    }
    if effort is None:
        return fit_router(dataset, stores, **options)
    fitted, _ = fit_chosen(dataset, stores, effort=effort, **options)
    return fitted


def _saver(to: PathOrUrl, *, judges: bool) -> "Callable[[Router], None]":
    """Saves the router once it is fitted; says how long its verdict takes, if it is judged."""
    began = time.monotonic()

    def save(router: "Router") -> None:
        opt.save_router(router, to)
        if judges:
            minutes = _FITS * (time.monotonic() - began) / 60
            err.say(
                f"router: {to}, saved; now it is judged by cross-fitting: five more fits, about "
                f"{minutes:.1f} minutes"
            )

    return save


def _fit_dict(fitted: "RouterFit") -> dict[str, Any]:
    """The verdict and the metrics for JSON."""
    metrics: Mapping[str, Any] = {}
    if fitted.win_verdict is not None:
        metrics = fitted.win_verdict.metrics
    elif fitted.evaluation is not None:
        metrics = fitted.evaluation.headline
    verdict = None if fitted.verdict is None else fitted.verdict.to_dict()
    return {"verdict": verdict, **{name: metric.to_dict() for name, metric in metrics.items()}}


def _show_fit(fitted: "RouterFit", to: PathOrUrl) -> None:
    from prefill_router.cli.headline import show_headline, show_verdict

    _print_features(fitted)
    if fitted.evaluation is not None:
        show_headline(fitted.evaluation)
    else:
        show_verdict(fitted.verdict)
    chosen = fitted.router.record.chosen
    if chosen is not None:
        out.say(f"setting: lam {chosen.setting:.3g}, {chosen.rule}")
    out.say(f"router: {to}")


PAPER = "paper"
_FITS = 4.5
"""How much longer than the fit its verdict takes: five fits of four fifths of the rows."""
GOALS: Final[tuple["Goal", ...]] = ("accuracy", "balanced", "savings")
SERVED_BY: Final[tuple[Literal["switchyard"]]] = ("switchyard",)


def _setting_rule(lose: float | None, goal: str | None, max_cost: float | None) -> "SettingRule":
    """The rule of the options."""
    from prefill_router.evaluation import SettingRule

    if goal is None:
        return SettingRule(lose=2.0 if lose is None else lose, max_cost=max_cost)
    if lose is not None:
        raise UsageError("--goal and --lose are both given; give one of them")
    named = parse_choice("--goal", goal, GOALS)
    return SettingRule.of_goal(named, max_cost=max_cost)


def _refuse_others(prefill: "PrefillConfig", others: Sequence[object]) -> None:
    from prefill_router.features import PrefillConfig

    if prefill != PrefillConfig() or any(option is not None for option in others):
        raise UsageError(
            "--for determines the recipe; leave out --recipe, --effort, --policy and the options "
            "of the features"
        )


def _choose_effort(
    effort: str | None, prefill: "PrefillConfig", recipe: Path | None
) -> "Effort | None":
    """How much is tried; None where the recipe is given, or its features."""
    from prefill_router.features import PrefillConfig
    from prefill_router.fitting import EFFORTS

    is_given = recipe is not None or prefill != PrefillConfig()
    if effort is None:
        return None if is_given else "normal"
    if is_given:
        raise UsageError(
            "--effort chooses a recipe, but --recipe or options of the features give one "
            "already; leave one of them out"
        )
    return parse_choice("--effort", effort, EFFORTS)


def _make_recipe(
    data: PathOrUrl, prefill: "PrefillConfig", file: Path | None, store: Sequence[PathOrUrl] | None
) -> "Recipe":
    """The recipe in the file, or the paper's with these options."""
    from prefill_router.data import read_dataset
    from prefill_router.features import PrefillConfig
    from prefill_router.fitting import Recipe, read_recipe

    if file is None or str(file) == PAPER:
        if not store:
            if isinstance(data, Path) and not data.is_dir():
                read_dataset(data)  # says what is there instead
            raise UsageError(
                f"no store has the states of {data}; make one with: prefill-router encode {data} "
                "--out states, and give --store states, or a recipe that names an encoder with "
                "--recipe"
            )
        return Recipe(features=(prefill,))
    if prefill != PrefillConfig():
        raise UsageError(
            "--recipe and options of the prefill features are both given; put the options into "
            "the recipe"
        )
    return read_recipe(file)


def _read_policy(text: str) -> "Policy | FrugalCascade":
    """The policy of a kind, or of a mapping as a recipe has it."""
    from prefill_router.fitting import recipe_from_dict
    from prefill_router.yaml_files import DistinctLoader, NotYamlError, parse_yaml

    try:
        value = parse_yaml(text, DistinctLoader)
    except NotYamlError as error:
        raise UsageError(
            f"--policy can't be read: {error}; give a kind, or '{{kind: tolerance, ...}}'"
        ) from None
    return recipe_from_dict({"policy": value or text}).policy


def _with_policy(recipe: "Recipe", policy: "Policy | FrugalCascade | None") -> "Recipe":
    return recipe if policy is None else replace(recipe, policy=policy)


def _make_prefill(
    mode: str,
    select: str,
    pin: list[str] | None,
    scope: str,
    dim: int,
    pooling: str,
    all_layers: bool,
    assign: list[str] | None,
) -> "PrefillConfig":
    from prefill_router.features import PrefillConfig

    return PrefillConfig(
        mode=cast(
            Literal["single", "per_model", "auto"],
            parse_choice("--mode", mode, ("single", "per_model", "auto")),
        ),
        select=_read_selection(select, pin),
        scope=cast(Literal["target", "pool"], parse_choice("--scope", scope, ("target", "pool"))),
        dim=dim,
        poolings=tuple(opt.parse_poolings(pooling)),
        all_layers=all_layers,
        assignments=by_name("--assign", assign or []),
    )


def _read_selection(select: str, pin: list[str] | None) -> str | dict[str, str]:
    """How sites are chosen: a method, one site for all targets, or one for each."""
    if not pin:
        return select
    if select != "fisher":  # the default
        raise UsageError(f"--pin and --select {select} are both given; give one of them")
    return by_name("--pin", pin)


def _print_features(fitted: "RouterFit") -> None:
    from prefill_router.features import FeatureExtractor

    for family in fitted.router.features.families:
        if isinstance(family, FeatureExtractor):
            _print_blocks(family)
        else:
            out.print(f"{family.kind}: {family.width} columns")
    for note in fitted.router.record.notes:
        out.say(f"note: {note}")


def _print_blocks(features: "FeatureExtractor") -> None:
    for block in features.blocks:
        readers = [
            n
            for n, b in zip(features.targets, features.block_of_target(), strict=True)
            if b is block
        ]
        out.say(
            f"{format_count(len(readers), 'target')} {'reads' if len(readers) == 1 else 'read'} "
            f"{block.provenance.encoder} {block.site.name}, "
            f"PCA {block.dim}"
        )
