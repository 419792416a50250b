"""`prefill-router quickstart`: from what a user has to a router, or to what is missing for one.

Every step is a command that a user could type; each continues where it was interrupted.
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import typer
from pydantic import Field

from prefill_router import files
from prefill_router.cli.application import CommandRun, app, err, out, print_json
from prefill_router.cli.commands import UsageError, usage_errors
from prefill_router.errors import MissingExtraError
from prefill_router.importers import FORMATS

if TYPE_CHECKING:
    from prefill_router.cli.quickstart_result import QuickstartResult
    from prefill_router.importers import Columns, SourceDoubt, SourceGuess

_SQLITE = b"SQLite format 3\0"


def _column_option(name: str, help_: str = "") -> Any:
    return typer.Option(f"--{name}-column", help=help_ or "By default guessed.")


@app.command()
def quickstart(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Files or a folder: a table of scored answers or votes, provider logs, a dataset; "
            "or the gateway's receipts.",
        ),
    ],
    to: Annotated[Path, typer.Option("--out", help="The folder for all files.")] = Path(
        "quickstart"
    ),
    yes: Annotated[
        bool, typer.Option("--yes", help="Take the likeliest guess instead of asking.")
    ] = False,
    encoder: Annotated[str, typer.Option(help="The encoder, as for encode.")] = "minilm",
    prices: Annotated[Path | None, typer.Option(help="A pool.yaml or a prices.csv.")] = None,
    price_list: Annotated[
        str | None,
        typer.Option(help="Look prices up in OpenRouter's list of models, a URL or a file."),
    ] = None,
    format_: Annotated[
        str | None, typer.Option("--format", help="A format of `import`; guessed by default.")
    ] = None,
    prompt: Annotated[str | None, _column_option("prompt")] = None,
    target: Annotated[str | None, _column_option("target")] = None,
    targets: Annotated[
        str | None, typer.Option("--target-columns", help="Of a wide table; by default guessed.")
    ] = None,
    correct: Annotated[
        str | None, _column_option("correct", "Or the score's name in a log.")
    ] = None,
    cost: Annotated[str | None, _column_option("cost")] = None,
    scale: Annotated[
        str | None, typer.Option(metavar="WORST-BEST", help="Such as 1-5; by default guessed.")
    ] = None,
    threshold: Annotated[
        float | None, Field(ge=-100_000), typer.Option(help="The lowest score of a right answer.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Make a router of what you have: a table, logs of calls, or receipts.

    It says how it reads the source, and asks if it can't tell. Then it encodes the prompts, fits a
    router, says whether it is worth it, proposes a lam, and writes a pool file. Without labels it
    says what is missing and how to get it. After an interruption the same command goes on from
    there.

    Example: prefill-router quickstart answers.csv --out quickstart
    """
    from prefill_router.cli.quickstart_result import QuickstartResult
    from prefill_router.importers import Columns, Scale

    if format_ is not None and format_ not in FORMATS:
        raise UsageError(f"there is no format {format_!r}; the formats are {', '.join(FORMATS)}")
    with usage_errors():
        scores = Scale.parse(scale, threshold)
    columns = Columns(
        prompt=prompt,
        target=target,
        targets=tuple(name.strip() for name in (targets or "").split(",") if name.strip()),
        correct=correct,
        cost=cost,
        scale=scores,
    )
    pool = to / "pool.yaml"
    listed = pool if pool.is_file() else prices
    files.check_place(to, replaced=False)
    read = _Source.of(sources, columns, format_, asks=not yes)
    if prices is not None and pool.is_file():
        _update_prices(pool, prices)
    err.say("\n".join(f"{name}: {fact}" for name, fact in read.facts.items()))
    job = CommandRun(to, to / "log")
    data = Path(sources[0])
    if read.command:
        data = to / "data"
        _import_source(job, read, data, listed)
    result = QuickstartResult.begin(job, data, read.facts, price_list, is_shown=not as_json)
    lacking = result.lacking()
    if lacking:
        result.explain_labels(lacking)
    else:
        result.fit(job, encoder, is_shown=not as_json)
    _write_page(result, to)
    if as_json:
        print_json(result.to_dict())
    else:
        _print_result(result, to)


def _import_source(job: CommandRun, source: "_Source", data: Path, prices: Path | None) -> None:
    """Write the dataset, and check that it has the answers of two targets or more."""
    from prefill_router.data import read_dataset
    from prefill_router.importers import check_choice

    priced = (source.prices, prices) if source.prices and prices else ()
    job.do(*source.command, "--out", data, *priced)
    if source.format is not None:
        check_choice(read_dataset(data), source.format)


def _write_page(result: "QuickstartResult", to: Path) -> None:
    try:
        result.write_page()
    except MissingExtraError as error:
        err.say(f"note: {to} has the numbers and no page: {error}")


def _print_result(result: "QuickstartResult", to: Path) -> None:
    for line in result.lines:
        out.say(line)
    out.say("next:\n" + "\n".join(f"  {line}" for line in result.steps))
    page = to / "index.html"
    out.say(f"page: {page if page.exists() else to}")


def _update_prices(pool: Path, prices: Path) -> None:
    """Give the targets in the pool file of an earlier run the prices of another file."""
    from prefill_router.importers import read_prices
    from prefill_router.targets import read_pool, write_pool

    before, listed = read_pool(pool), read_prices(prices)
    priced = {
        target.name: (target.input_price, target.output_price)
        for target in listed
        if target.input_price is not None and target.output_price is not None
    }
    updated = {name: price for name, price in priced.items() if name in before.names}
    after = before.with_prices(updated, date=listed.prices_date)
    if after != before:
        write_pool(after, pool)
        err.say(f"prices: those of {prices} are now in {pool}")


@final
@dataclass(frozen=True)
class _Source:
    """The command that reads the sources, its option for prices, and how it reads them.

    A dataset needs no command. The format is that of `import`.
    """

    command: tuple[object, ...]
    facts: Mapping[str, str]
    prices: str | None = None
    format: str | None = None

    @classmethod
    def of(
        cls, sources: Sequence[str], columns: "Columns", format_name: str | None, *, asks: bool
    ) -> "_Source":
        first = Path(sources[0])
        if _is_receipts(sources[0]):
            place = sources[0] if "://" in sources[0] else first
            facts = {"format": "receipts of the gateway"}
            return cls(("export-receipts", place, "--unscored"), facts, "--pool")
        if (first / "queries.parquet").is_file():
            return cls((), {"format": "a dataset of this package"})
        guess = _settle_guess([Path(source) for source in sources], columns, format_name, asks=asks)
        options = [
            part
            for field in fields(guess.columns)
            if (value := getattr(guess.columns, field.name))
            for part in _make_options(field.name, value)
        ]
        command = ("import", guess.format, *sources, *options)
        return cls(command, guess.facts, "--prices", guess.format)


def _is_receipts(source: str) -> bool:
    if source.startswith(("sqlite:", "postgresql:")):
        return True
    path = Path(source)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def _settle_guess(
    paths: list[Path], columns: "Columns", format_name: str | None, *, asks: bool
) -> "SourceGuess":
    """The guess without doubts, each of which is asked or taken."""
    from prefill_router.importers import guess_source

    guess = guess_source(paths, columns=columns, format_name=format_name)
    while guess.doubts:
        if not asks or not _can_ask():
            _refuse_doubts(paths, guess.doubts, asks=asks)
        doubt = guess.doubts[0]
        columns = doubt.settle(columns, _ask_user(doubt) if asks else doubt.choices[0])
        guess = guess_source(paths, columns=columns, format_name=format_name)
    return guess


def _refuse_doubts(paths: list[Path], doubts: "Sequence[SourceDoubt]", *, asks: bool) -> None:
    """Say all that the source doesn't tell, with the command that settles it.

    Raises:
        UsageError: There are doubts that mustn't be taken as is likeliest.
    """
    is_reckless = any(doubt.is_reckless for doubt in doubts)
    if not asks and not is_reckless:
        return
    questions = " ".join(doubt.question_with_choices() for doubt in doubts)
    sources = shlex.join(map(str, paths))
    command = " ".join(["prefill-router quickstart", sources, *(doubt.fix for doubt in doubts)])
    more = "" if is_reckless else ", or pass --yes to take the first of each"
    raise UsageError(f"the source doesn't tell: {questions} Give {command}{more}")


def _ask_user(doubt: "SourceDoubt") -> str:
    """The user's answer to a doubt."""
    default = doubt.choices[0] if doubt.choices else None
    question = doubt.question_with_choices()
    answer: str = typer.prompt(question, default=default, err=True)
    return answer


def _can_ask() -> bool:
    return sys.stdin.isatty()


def _make_options(name: str, value: Any) -> list[object]:
    """A field of `Columns` as options of `import`."""
    if name == "scale":
        ends = [] if value.ends is None else ["--scale", ":".join(f"{end:g}" for end in value.ends)]
        least = value.threshold
        return [*ends, *([] if least is None else ["--threshold", least])]
    if name == "targets":
        return ["--target-columns", ",".join(value)]
    if name == "repeats":
        return ["--repeats", value]
    return [f"--{name.replace('_', '-')}-column", value]
