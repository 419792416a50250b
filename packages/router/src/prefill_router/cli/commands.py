"""The commands by name, which file holds each, and the checks of the command line that all share.

A command is a function of its file, decorated with `app.command`, `study.command` and so on. The
file is imported when the command is called, so that `--help` reads this table alone.

The checks find errors in the command line itself, before the files that it names are read. One
table has the range of every option's number, so that all commands refuse a number with the same
error.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, final

from prefill_router.errors import ConfigError
from prefill_router.lazy_imports import installed


@final
@dataclass(frozen=True)
class CommandEntry:
    """A command, or a group of them, in the list of commands.

    Attributes:
        summary: One sentence, the first of the command's own help.
        home: The file, a module of this package; empty for a group.
        panel: The heading under which it is listed.
        commands: The commands of a group, by name.
    """

    summary: str
    home: str = ""
    panel: str | None = None
    commands: "dict[str, CommandEntry]" = field(default_factory=dict)


_SHARED = {
    name: home
    for home, names in {
        "collect": ("tasks", "prices"),
        "datasets": ("describe", "split", "merge"),
        "demo": ("minipool",),
        "doctor": ("calibration",),
        "evaluate": ("compare", "paired"),
        "gateway": ("serve", "litellm"),
        "labels": ("grade", "learn"),
        "layers": ("sweep",),
        "operating_point": ("keep", "replay"),
        "paper": ("reproduce", "study_seeds", "study_ratio", "study_shift"),
        "receipts": ("explain", "canary", "savings", "purge"),
        "routers": (
            *("show", "reprice", "versions", "promote", "rollback"),
            *("add_target", "remove_target"),
        ),
        "study": ("study_learning", "study_robustness"),
        "study_layers": ("study_dimensions",),
    }.items()
    for name in names
}
"""The files that hold several commands, by the name that a command's own file would have."""


def _listed(panel: str, home: str = "{}", **summaries: str) -> dict[str, CommandEntry]:
    """Commands with files of their own names, or shared; `import_` is `import`, and _ a dash."""
    files = {name: home.format(name) for name in summaries}
    return {
        name.strip("_").replace("_", "-"): CommandEntry(
            summary, _SHARED.get(files[name], files[name]), panel or None
        )
        for name, summary in summaries.items()
    }


COMMANDS: dict[str, CommandEntry] = {
    **_listed(
        "Begin",
        quickstart="Make a router of what you have: a table, logs of calls, or receipts.",
    ),
    **_listed(
        "Collect and grade",
        tasks="Write the tasks of a benchmark or of a file of your own as JSON Lines, to "
        "look at or edit.",
        prices="Refresh a pool's prices from OpenRouter's list of models, and date them.",
        collect="Ask every target every question, and keep each answer as it arrives.",
        grade="Grade a run's answers and write a dataset folder.",
        import_="Read scored answers of another format and write a dataset folder.",
        merge="Join datasets by the ids of their queries and the names of their targets.",
    ),
    **_listed(
        "Look at a dataset",
        describe="Say what a dataset holds: queries, targets, accuracy, cost, oracle, "
        "consensus regimes.",
        split="Draw train and test parts, stratified and saved by query id, for every "
        "stage to share.",
    ),
    **_listed(
        "Fit",
        encode="Read every prompt with an encoder and keep its hidden states.",
        layers="Show Fisher J, effective dimensionality and anisotropy by depth, and "
        "what the layers know.",
        sweep="Compare encoders: the test AUC of a linear probe for every target under "
        "each of them.",
        fit="Fit a router on the train part of a dataset and judge it on the test part.",
        search="Search features, predictors and calibrations; then look at the test part, once.",
        add_target="Add a target to a router from few labels, whose questions are chosen.",
        remove_target="Remove a target from a router without fitting it again.",
    ),
    **_listed(
        "Judge",
        evaluate="Judge a router on queries with known outcomes.",
        paired="Compare two routers by a paired bootstrap, on queries that neither was fitted on.",
        compare="Fit routers of several recipes on one split and compare them.",
        calibration="Show how well a router is calibrated on its test part, and what "
        "calibrators would change.",
        doctor="Examine whether a router is more than a fixed choice.",
        keep="Find the cheapest lam that keeps a share of the best single target's "
        "accuracy, guaranteed.",
        reproduce="Rebuild the paper's tables and figures, our numbers beside the paper's.",
    ),
    "study": CommandEntry(
        "Studies of routers: seeds, routing ratio, shift and more, each with a "
        "page of its own. Interrupted, the same command goes on from there.",
        panel="Judge",
        commands=_listed(
            "",
            home="study_{}",
            seeds="Fit each router with several seeds on one split: mean, standard "
            "deviation, extremes.",
            ratio="Send each share of the queries to the strong target, in the router's own order.",
            shift="Train on some benchmarks or domains and test on others, beside routers "
            "trained on all.",
            dimensions="Probe the targets' correctness by encoder, pooling and number of "
            "PCA components.",
            layers="Compare the ways to select a layer, for every pool under every encoder.",
            learning="Fit each router on fewer labels and say whether more of them would "
            "help, and which.",
            robustness="Count the decisions that change if prompts have typos, other words or "
            "reordered options.",
            end_to_end="Count the encoder's cost and the decision's latency, and see what is left "
            "of the savings.",
        ),
    ),
    **_listed(
        "Route",
        route="Choose the target that should answer a request, and say why.",
        show="Check a router's folder and show its card.",
        reprice="Change a router's prices without fitting it again.",
    ),
    **_listed(
        "Serve",
        serve="Serve the OpenAI protocol, and send each request to the target that the "
        "router picks.",
        litellm="Convert LiteLLM's configuration to a pool file and settings of the gateway.",
        explain="Say why the gateway sent a request where it went, from its receipt.",
        replay="Decide recorded requests again: at another lam, at other prices, or by "
        "another router.",
        savings="Tell what routing saved against one target alone, its own costs deducted.",
        canary="Compare routed traffic with the rest, where only a share is routed "
        "(`traffic.share`).",
        export="Make a dataset of receipts and feedback, or write a router in another "
        "project's format.",
        purge="Delete receipts, by key or age, with all that was kept to learn from them.",
    ),
    **_listed(
        "Serve",
        learn="Label sampled requests within a purse, fit a router on them, and propose it.",
        versions="List the versions of a router, and what led to the one that serves.",
        promote="Let a version serve, at once or on a share of the conversations, without a test.",
        rollback="Let what served before serve again: a version, or the default target.",
    ),
    "key": CommandEntry(
        "Make, list and revoke the API keys of the gateway's clients.",
        panel="Serve",
        commands=_listed(
            "",
            home="gateway",
            new="Make a key, print it once, and keep its hash.",
            list="List the keys of a file, and what they may do.",
            revoke="Remove a key from a file; a running gateway refuses it after its next reload.",
        ),
    ),
    **_listed(
        "Try it out",
        demo="Run every step on the pool of tiny language models, without key, download or GPU.",
    ),
    "minipool": CommandEntry(
        "Serve a pool of tiny language models, which needs no key and no download.",
        panel="Try it out",
        commands=_listed(
            "",
            home="minipool",
            serve="Serve the tiny pool over the OpenAI protocol until it is interrupted.",
            tasks="Make questions that none of the tiny models was trained on, each with "
            "its answer.",
        ),
    ),
}


Choice = TypeVar("Choice", bound=str)


class UsageError(ConfigError):
    """The command line itself is wrong; the exit code is 2."""


@contextmanager
def reading_words() -> Iterator[None]:
    """Turn errors into usage errors: within it nothing but the command line has been read."""
    try:
        yield
    except ConfigError as error:
        raise UsageError(*error.told) from None


def check_suffix(option: str, place: Path, known: Sequence[str]) -> None:
    """Check that a file's suffix fits its format.

    Raises:
        UsageError: It doesn't.
    """
    if place.suffix.lower() not in known:
        raise UsageError(f"{option} is {place}; name a file such as {place.stem}{known[0]}")


def one_of(option: str, text: str, choices: Sequence[Choice]) -> Choice:
    """The choice of this name.

    Raises:
        UsageError: There is none.
    """
    for choice in choices:
        if choice == text:
            return choice
    raise UsageError(f"{option} is {text!r}; it must be one of {', '.join(choices)}")


@final
@dataclass(frozen=True)
class NumberRange:
    """The numbers that an option takes.

    Attributes:
        least: The lower bound.
        most: The upper bound; None for none.
        above: Whether `least` itself is excluded.
        below: Whether `most` itself is excluded.
    """

    least: float = 0
    most: float | None = None
    above: bool = False
    below: bool = False

    def __contains__(self, number: float) -> bool:
        if not math.isfinite(number):
            return False
        low = number > self.least if self.above else number >= self.least
        if self.most is None:
            return low
        return low and (number < self.most if self.below else number <= self.most)

    def __str__(self) -> str:
        low = f"above {self.least:g}" if self.above else f"{self.least:g} or more"
        if self.most is None:
            return low
        if self.above or self.below:
            return f"{low} and {'below' if self.below else 'at most'} {self.most:g}"
        return f"from {self.least:g} to {self.most:g}"


_ANY, _COUNT, _POSITIVE = NumberRange(), NumberRange(1), NumberRange(above=True)
NUMBER_RANGES: dict[str, NumberRange] = {
    **dict.fromkeys(("--seed", "--resamples", "--assume-output-tokens", "--margin"), _ANY),
    **dict.fromkeys(("--backoff", "--patience", "--max-cost", "--judge-max-cost"), _ANY),
    **dict.fromkeys(("--per-day", "--robustness"), _ANY),
    **dict.fromkeys(("--encoder-price", "--reference-price", "--per-hour"), _ANY),
    **dict.fromkeys(("--routing-ms", "--reference-ms"), _ANY),
    **dict.fromkeys(("--minutes", "--dollars-per-day", "--dollars-per-hour"), _POSITIVE),
    **dict.fromkeys(("--attempts", "--jobs", "--judge-samples", "--sample", "--trials"), _COUNT),
    **dict.fromkeys(("--dim", "--bins", "--seeds", "--max-tokens", "--rounds"), _COUNT),
    **dict.fromkeys(("--batch-tokens", "--threads", "--max-batch", "--workers"), _COUNT),
    **dict.fromkeys(("--requests-per-minute", "--concurrent"), _COUNT),
    **dict.fromkeys(("--labels", "--caution", "--anchors-every"), _ANY),
    "--worker-cpus": _COUNT,
    "--deadline-seconds": NumberRange(0, 86_400, above=True),
    "--dollars-per-second": NumberRange(0, 1000),
    "--encoder-second-dollars": NumberRange(0),
    "--encoder-thousand-dollars": NumberRange(0),
    "--folds": NumberRange(2),
    "--questions": NumberRange(200),
    "--lam": NumberRange(0, 1),
    "--keep": NumberRange(0, 1, above=True),
    "--typos": NumberRange(0, 1, above=True),
    "--step": NumberRange(0, 1, above=True),
    "--confidence": NumberRange(0, 1, above=True, below=True),
    "--port": NumberRange(0, 65535),
}
"""The range of each option, in all commands that have it."""
_OF_COMMANDS: dict[tuple[str, str], NumberRange] = {
    ("replay", "--keep"): NumberRange(0, 1),
    ("import", "--threshold"): NumberRange(-100_000),
    ("quickstart", "--threshold"): NumberRange(-100_000),
    ("study seeds", "--count"): NumberRange(2),
    ("study learning", "--draws"): NumberRange(2),
    ("doctor", "--resamples"): NumberRange(20),
    ("learn", "--judge-twice"): NumberRange(0, 1),
    ("learn", "--least-labels"): NumberRange(2),
    ("versions", "--steps"): NumberRange(0),
    ("promote", "--share"): NumberRange(0, 1, above=True, below=True),
    ("study learning", "--resamples"): _COUNT,
    ("minipool tasks", "--count"): _COUNT,
}
"""The range of an option in one command, where it differs from the others."""


def range_of(command: str, option: str) -> NumberRange | None:
    """The numbers that an option of a command takes; None for one that takes none."""
    return _OF_COMMANDS.get((command, option)) or NUMBER_RANGES.get(option)


def check_numbers(command: str, params: list[Any], ctx: Any) -> None:
    """Check the numbers of a command line.

    Raises:
        UsageError: A number is out of its option's range.
    """
    for param in params:
        found = ctx.params.get(param.name)
        span = range_of(command, param.opts[0])
        for number in found if isinstance(found, list | tuple) else [found]:
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            if is_number and span is not None and number not in span:
                shown = number if isinstance(number, int) else f"{number:g}"
                raise UsageError(f"{param.opts[0]} is {shown}; it must be {span}")


def check_places(params: list[Any], ctx: Any) -> None:
    """Check that no path is a URL, but for those that may be one.

    Raises:
        UsageError: One is.
    """
    from prefill_router.files import refuse_url

    for param in params:
        found = ctx.params.get(param.name)
        for path in found if isinstance(found, list | tuple) else [found]:
            if isinstance(path, Path):
                with reading_words():
                    refuse_url(path)


_DRAWING = frozenset(
    {"calibration", "compare", "demo", "doctor", "layers", "replay", "reproduce", "search", "sweep"}
)
"""Commands that draw figures into the folder of their --out; every study does so, too."""


def check_drawing(command: str, options: Mapping[str, Any]) -> None:
    """Check that the plotting library is installed, before a command works for hours.

    Raises:
        MissingExtraError: It isn't installed.
    """
    draws = command in _DRAWING or command.startswith("study ")
    if draws and options.get("to") is not None:
        installed("matplotlib", needed_for="drawing figures")


def by_name(option: str, pairs: Sequence[str], form: str = "TARGET=VALUE") -> dict[str, str]:
    """The value of each name, from NAME=VALUE; a name may contain an = too.

    Args:
        option: The option that has them.
        pairs: What it was given.
        form: How a pair is written, for the error.

    Raises:
        UsageError: A pair is written in another way, or a name is given twice.
    """
    values: dict[str, str] = {}
    for pair in pairs:
        name, _, value = pair.rpartition("=")
        if not name or not value:
            raise UsageError(f"{option} is {pair!r}; write it as {form}")
        if name in values:
            raise UsageError(f"{option} has {name!r} more than once; give each name once")
        values[name] = value
    return values
