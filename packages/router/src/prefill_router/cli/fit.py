"""`prefill-router fit`: fits a router on scored answers and states."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, cast

import typer
from pydantic import Field

from prefill_router import files
from prefill_router.cli import options as opt
from prefill_router.cli.application import app, err, out, print_json
from prefill_router.cli.commands import UsageError, by_name, one_of, reading_words
from prefill_router.options import AT_LEAST_ONE, NOT_NEGATIVE
from prefill_router.progress import BarProgress
from prefill_router.remote import PathOrUrl

if TYPE_CHECKING:
    from prefill_router.evaluation import Goal, SettingRule
    from prefill_router.features import FeatureExtractor, PrefillConfig
    from prefill_router.fitting import Effort, Recipe, RouterFit
    from prefill_router.policy import FrugalCascade, Policy
    from prefill_router.router import Router


@app.command()
def fit(
    data: opt.DataFolder,
    to: opt.RouterOut,
    store: opt.Stores = None,
    recipe: Annotated[
        Path | None,
        typer.Option(
            help="A YAML file with features, predictor and more, or: paper, the paper's router; "
            "instead of the options."
        ),
    ] = None,
    effort: Annotated[
        str | None,
        typer.Option(
            help="quick takes a recipe as it is; normal tries a few on train rows, about two "
            "minutes; best tries more. By default normal, without --recipe and options of the "
            "features."
        ),
    ] = None,
    for_: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="switchyard: a router that `export --switchyard` can write; instead of a recipe.",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="The policy: lambda, argmax, tolerance, threshold, tiered, cascade or "
            "frugal_cascade, or one with options as in a recipe: '{kind: KIND, ...}'; instead of "
            "the recipe's."
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
        typer.Option(help="TARGET=SITE, for each target; instead of --select."),
    ] = None,
    scope: Annotated[
        str, typer.Option(help="target: a site for each target; pool: one for all.")
    ] = "target",
    dim: Annotated[int, AT_LEAST_ONE, typer.Option(help="PCA components of each block.")] = 100,
    pooling: opt.Poolings = "last,mean",
    all_layers: Annotated[
        bool, typer.Option("--all-layers", help="Consider layers below the middle too.")
    ] = False,
    assign: Annotated[
        list[str] | None, typer.Option(help="For per_model: TARGET=ENCODER; may be given again.")
    ] = None,
    lose: Annotated[
        float | None,
        Field(ge=0, le=100),
        typer.Option(
            help="The setting that the router is used at is the cheapest that loses at most these "
            "points of accuracy to the best target, one standard error included. By default 2."
        ),
    ] = None,
    goal: Annotated[
        str | None,
        typer.Option(
            help="accuracy: the most accurate setting; balanced: --lose 2; savings: --lose 5. "
            "Instead of --lose."
        ),
    ] = None,
    max_cost: Annotated[
        float | None,
        NOT_NEGATIVE,
        typer.Option(help="The setting costs at most so many dollars per 1,000 queries."),
    ] = None,
    test: Annotated[
        float,
        Field(ge=0, le=0.5),
        typer.Option(help="The share of the queries that is sealed as a test part, such as 0.15."),
    ] = 0.0,
    split_file: opt.SplitFile = None,
    verdict: Annotated[
        bool,
        typer.Option(
            help="Judge it on all queries that it learns from, by fitting it five times without a "
            "fifth of them."
        ),
    ] = True,
    seed: Annotated[
        int, NOT_NEGATIVE, typer.Option(help="Seed of the split and of the training.")
    ] = 0,
    assume_output_tokens: Annotated[
        float | None,
        NOT_NEGATIVE,
        typer.Option(help="For targets with prices and without token counts."),
    ] = None,
    encoder_folder: opt.EncoderFolders = None,
    overwrite: opt.Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
) -> None:
    """Fit a router on scored answers, and say whether it is worth it.

    Without a recipe, the best of a few on the states in the stores is fitted, by cross-validation.
    It learns from all queries, and is saved before it is judged. The verdict is by cross-fitting:
    every query is judged by a router that was fitted without it. From votes between two answers it
    is in win rate. Interrupted, it goes on where it stopped. A part that --test or --split seals is
    judged as well. States that a recipe needs and no store has are encoded now and kept in the
    cache.

    Example: prefill-router fit answers --store states --out router
    """
    from prefill_router.cli.headline import show_headline, show_verdict
    from prefill_router.data import load_split, read_dataset
    from prefill_router.fitting import (
        FitConfig,
        check_same_fit,
        fit_chosen,
        fit_router,
        switchyard_recipe,
    )
    from prefill_router.router import check_replaceable

    with reading_words():
        prefill = _prefill(mode, select, pin, scope, dim, pooling, all_layers, assign)
        named = None if policy is None else _policy(policy)
        if for_ is not None:
            one_of("--for", for_, SERVED_BY)
            _refuse_others(prefill, [recipe, effort, policy])
        tried = None if for_ else _effort(effort, prefill, recipe)
        rule = _setting_rule(lose, goal, max_cost)
        if split_file is not None and test:
            raise UsageError("--test and --split both seal a test part; give one of them")
    given = None if for_ else _recipe(data, prefill, recipe, store)
    check_replaceable(to)
    stores = opt.open_stores(store)
    config = FitConfig(
        recipe=_with_policy(given or switchyard_recipe(stores), named),
        assumed_output_tokens=assume_output_tokens,
        seed=seed,
        effort=tried,
        setting=rule,
        test=test,
    )
    drawn = None if split_file is None else load_split(split_file)
    dataset = read_dataset(data)
    if not overwrite:
        check_same_fit(to, dataset, stores, config=config, drawn=drawn)
    bar, sources = BarProgress(console=err), opt.sources(encoder_folder)

    began = time.monotonic()

    def save(router: "Router") -> None:
        opt.save_router(router, to)
        if verdict:
            minutes = _FITS * (time.monotonic() - began) / 60
            err.say(
                f"router: {to}, saved; now it is judged by cross-fitting: five more fits, about "
                f"{minutes:.1f} minutes"
            )

    cache = files.default_cache()
    if tried is None:
        fitted = fit_router(
            *(dataset, stores),
            config=config,
            drawn=drawn,
            sources=sources,
            cache=cache,
            verdict=verdict,
            save=save,
            progress=bar,
        )
    else:
        fitted, _ = fit_chosen(
            *(dataset, stores),
            effort=tried,
            config=config,
            drawn=drawn,
            sources=sources,
            cache=cache,
            verdict=verdict,
            save=save,
            progress=bar,
        )
    if verdict:
        opt.save_router(fitted.router, to)
    judged = fitted.evaluation
    if as_json:
        said = None if fitted.verdict is None else fitted.verdict.to_dict()
        numbers = {} if judged is None else judged.headline
        if fitted.win_verdict is not None:
            numbers = fitted.win_verdict.metrics
        print_json({"verdict": said, **{name: one.to_dict() for name, one in numbers.items()}})
        return
    _print_features(fitted)
    if judged is not None:
        show_headline(judged)
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
    named = one_of("--goal", goal, GOALS)
    return SettingRule.of_goal(named, max_cost=max_cost)


def _refuse_others(prefill: "PrefillConfig", others: Sequence[object]) -> None:
    from prefill_router.features import PrefillConfig

    if prefill != PrefillConfig() or any(one is not None for one in others):
        raise UsageError(
            "--for determines the recipe; leave out --recipe, --effort, --policy and the options "
            "of the features"
        )


def _effort(effort: str | None, prefill: "PrefillConfig", recipe: Path | None) -> "Effort | None":
    """How much is tried; None where the recipe is given, or its features."""
    from prefill_router.features import PrefillConfig
    from prefill_router.fitting import EFFORTS

    is_given = recipe is not None or prefill != PrefillConfig()
    if effort is None:
        return None if is_given else "normal"
    if is_given:
        raise UsageError(
            "--effort chooses a recipe, and --recipe or options of the features give one; leave "
            "one of them out"
        )
    return one_of("--effort", effort, EFFORTS)


def _recipe(
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


def _policy(text: str) -> "Policy | FrugalCascade":
    """The policy of a kind, or of a mapping as a recipe has it."""
    from prefill_router.fitting import recipe_from_dict
    from prefill_router.yaml_files import DistinctLoader, NotYamlError, parse_yaml

    try:
        given = parse_yaml(text, DistinctLoader)
    except NotYamlError as error:
        raise UsageError(
            f"--policy can't be read: {error}; give a kind, or '{{kind: tolerance, ...}}'"
        ) from None
    return recipe_from_dict({"policy": given or text}).policy


def _with_policy(recipe: "Recipe", policy: "Policy | FrugalCascade | None") -> "Recipe":
    return recipe if policy is None else replace(recipe, policy=policy)


def _prefill(
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
            one_of("--mode", mode, ("single", "per_model", "auto")),
        ),
        select=_selected(select, pin),
        scope=cast(Literal["target", "pool"], one_of("--scope", scope, ("target", "pool"))),
        dim=dim,
        poolings=tuple(opt.parse_poolings(pooling)),
        all_layers=all_layers,
        assignments=by_name("--assign", assign or []),
    )


def _selected(select: str, pin: list[str] | None) -> str | dict[str, str]:
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
            f"{len(readers)} targets read {block.provenance.encoder} {block.site.name}, "
            f"PCA {block.dim}"
        )
