"""`prefill-router assign`: assigns a file of prompts to targets under a budget."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefill_router import files
from prefill_router.cli import options as opt
from prefill_router.cli.application import app, columns, err, out, print_json
from prefill_router.cli.commands import UsageError, by_name, parse_choice
from prefill_router.cli.judged_queries import JudgedQueries
from prefill_router.money import dollars
from prefill_router.options import NOT_NEGATIVE
from prefill_router.progress import BarProgress
from prefill_router.remote import PathOrUrl

if TYPE_CHECKING:
    from prefill_router.assignment import Assignment, ExpectedAccuracy
    from prefill_router.router import Router
    from prefill_router.targets import Pool


@app.command()
def assign(
    folder: opt.RouterFolder,
    prompts: Annotated[
        Path,
        typer.Argument(
            metavar="PROMPTS",
            help="JSON Lines of prompts or of a provider's batch, a table, or a dataset's folder.",
        ),
    ],
    budget: Annotated[
        float, NOT_NEGATIVE, typer.Option(help="US dollars for all prompts together.")
    ],
    to: Annotated[Path, typer.Option("--out", help="The folder to write.")],
    at_most: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COUNT",
            help="The most prompts of a target, such as large=500 or large=20%; repeatable.",
        ),
    ] = None,
    data: Annotated[
        PathOrUrl | None,
        typer.Option(
            help="Scored answers to judge the forecast by, such as those that the router was "
            "fitted on.",
            parser=opt.path_or_url,
        ),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="openai, anthropic, or jsonl for plain lines; by default the format of the "
            "target's provider.",
        ),
    ] = None,
    pool: Annotated[
        Path | None,
        typer.Option(help="A pool file with the targets' providers, models and options."),
    ] = None,
    store: opt.Stores = None,
    encoder_folder: opt.EncoderFolders = None,
    overwrite: opt.Overwrite = False,
    as_json: opt.AsJson = False,
) -> None:
    """Assign a file of prompts to targets within a budget, and write a batch for each.

    It chooses the targets with the highest expected number of right answers within the budget. The
    output has a file of requests for each target, the table of all prompts, and a summary. Prompts
    that are in no store are encoded now, and kept in the cache.

    Example: prefill-router assign router prompts.jsonl --budget 50 --out batches
    """
    from prefill_router.assignment import (
        FOLDER,
        FORMATS,
        PromptFile,
        assign as find_assignment,
        predict_prompts,
        write_assignment,
    )
    from prefill_router.data import Origin, read_dataset

    chosen = None if format_ is None else parse_choice("--format", format_, FORMATS)
    limits = _Limits(at_most or ())
    FOLDER.check_replaceable(to)
    command = f"assign --budget {budget:.15g}{limits.words}"
    origin = Origin.of(command, folder, prompts)
    opt.check_origin(to, origin, overwrite=overwrite)
    router, source = opt.load_router(folder, encoder_folder), PromptFile(prompts)
    limits.check_names(router)
    served = _find_served(router, pool)
    queries = None if data is None else JudgedQueries.of(router, read_dataset(data))
    bar = BarProgress(console=err)
    predictions = predict_prompts(
        router, source, stores=opt.open_stores(store), cache=files.default_cache(), progress=bar
    )
    assignment = find_assignment(
        predictions, budget=budget, limits=limits.counts(len(predictions)), progress=bar
    )
    accuracy = None if queries is None else _expect_accuracy(queries, store, assignment, bar)
    summary = write_assignment(
        assignment,
        source,
        served,
        to,
        format=chosen,
        accuracy=accuracy,
        origin=origin,
        progress=bar,
    )
    if as_json:
        print_json({"out": str(to), **summary})
        return
    _show_assignment(assignment, accuracy, summary, to)


class _Limits:
    """The limits of --at-most: counts, or shares of the prompts."""

    def __init__(self, pairs: Sequence[str]) -> None:
        self._texts = by_name("--at-most", pairs, "NAME=COUNT")
        self.words = "".join(f" --at-most {name}={text}" for name, text in self._texts.items())
        self.counts(0)

    def counts(self, prompts: int) -> dict[str, int]:
        """The most prompts of each limited target.

        Raises:
            UsageError: A limit is neither a count nor a share.
        """
        return {name: _read_count(name, text, prompts) for name, text in self._texts.items()}

    def check_names(self, router: "Router") -> None:
        """Check that the router has these targets.

        Raises:
            ConfigError: It lacks one.
        """
        router.pool.indices(self._texts)


def _read_count(name: str, text: str, prompts: int) -> int:
    number = text.removesuffix("%")
    try:
        value = float(number) / 100 if text.endswith("%") else int(number)
    except ValueError:
        value = -1
    if not 0 <= value < math.inf or (text.endswith("%") and value > 1):
        raise UsageError(
            f"--at-most is '{name}={text}'; write a number of prompts such as {name}=500, or a "
            f"share such as {name}=20%"
        )
    return math.floor(value * prompts + 1e-9) if text.endswith("%") else int(value)


def _find_served(router: "Router", pool: Path | None) -> "Pool":
    """The router's targets, with the providers of a pool file, at the router's prices."""
    from prefill_router.targets import read_pool

    if pool is None:
        return router.pool
    listed = read_pool(pool).select(router.pool.names)
    priced = tuple(target.with_prices_of(router.pool[target.name]) for target in listed)
    if priced != listed.targets:
        err.say(f"note: {pool} has other prices; the router's count, which reprice changes")
    return replace(listed, targets=priced)


def _expect_accuracy(
    queries: JudgedQueries,
    store: "Sequence[PathOrUrl] | None",
    assignment: "Assignment",
    bar: BarProgress,
) -> "ExpectedAccuracy":
    """The accuracy to expect, by queries that the router didn't learn from."""
    from prefill_router.assignment import expect_accuracy
    from prefill_router.evaluation import Trial

    predictions = queries.predict(opt.open_stores(store), bar)
    alike = replace(predictions, scale=queries.router.costs.scale)  # a fold has one of its own
    return expect_accuracy(assignment, Trial.join(alike, queries.judged))


def _show_assignment(
    assignment: "Assignment", accuracy: "ExpectedAccuracy | None", summary: dict[str, Any], to: Path
) -> None:
    table = columns(
        "target", "prompts", "share", "P(correct)", "estimated cost", "batch", fold=True
    )
    for name, figures in summary["targets"].items():
        count = figures["prompts"]
        chance = f"{figures['expected_right'] / count:.3f}" if count else "-"
        batch = figures["batch"] if count else "-"
        share, cost = f"{100 * count / len(assignment):.1f} %", dollars(figures["expected_cost"])
        table.add_row(name, f"{count:,}", share, chance, cost, batch)
    out.print(table)
    right, count = assignment.expected_right, len(assignment)
    out.say(
        f"{count:,} prompts, of which {right:,.1f} are expected to be answered right "
        f"({100 * right / count:.1f} %)"
    )
    cost, budget = dollars(assignment.expected_cost), dollars(assignment.budget)
    out.say(f"estimated cost: {cost} of {budget}{_describe_setting(assignment)}")
    most = "the budget and the limits allow" if assignment.limits else "the budget allows"
    bound, distance = f"{assignment.bound:,.1f}", _describe_distance(assignment)
    out.say(f"at most {bound} can be expected right by what {most}: {distance}")
    for name, price in assignment.prices.items():
        out.say(f"one prompt more at {name} would be worth {price:.3f} right answers")
    out.say(_accuracy_line(accuracy))
    out.say(f"batches, table and summary: {to}")


def _describe_setting(assignment: "Assignment") -> str:
    if assignment.lam < 1:
        return f", at lam = {assignment.lam:.4g}"
    return "; more dollars would make no answer more probably right"


def _describe_distance(assignment: "Assignment") -> str:
    return f"{assignment.gap:.2g} more than here" if assignment.gap > _NONE else "as many as here"


_NONE = 0.005
"""A part of a right answer that isn't worth a word."""


def _accuracy_line(accuracy: "ExpectedAccuracy | None") -> str:
    from prefill_router.evaluation import interval, worded

    if accuracy is None:
        return "how far these probabilities can be trusted: --data with scored answers says"
    error, corrected = accuracy.error.value, accuracy.corrected
    return (
        f"corrected by {accuracy.judged:,} judged queries, where {100 * abs(error):.1f} points "
        f"{'more' if error > 0 else 'fewer'} were right than predicted: "
        f"{worded(corrected.value, 'share')} ({interval(corrected, 'share') or 'no interval'})"
    )
