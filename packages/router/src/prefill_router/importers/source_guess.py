"""What a user's source is: its format, the columns of a table, and the scale of its scores.

A public format is recognised by the fields of its first records. Names of columns are compared
without case and punctuation. A doubt is what the source can't tell: each has the readings that are
possible, the likeliest first, and the option that settles it. A guess that could turn the labels
round isn't made.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, final

from prefill_router.errors import ConfigError, DataError, FormatError
from prefill_router.importers import call_logs, sources, tables, values
from prefill_router.importers.builder import DatasetBuilder
from prefill_router.importers.registry import FORMATS
from prefill_router.importers.values import TARGET, Columns, Scale

_FILES, _RECORDS = 20, 50
_ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".xz", ".bz2")


def recognised_format(paths: Sequence[Path]) -> str | None:
    """The public format, or log, of which the sources have a record; None if there is none.

    A user's own table isn't recognised, whatever its columns.

    Args:
        paths: Files or folders.

    Raises:
        FormatError: A source doesn't exist, or a folder has no file that can be read.
    """
    found = sources.expand(paths, (*call_logs.LOG_SUFFIXES, *_ARCHIVES))
    formats, _ = FORMATS.load_all()
    for path in found[:_FILES]:
        for fields in _fields(path):
            for name, kind in formats.items():
                if any(signature <= fields for signature in kind.signatures):
                    return name
    return None


def _fields(path: Path) -> Iterator[set[str]]:
    """The fields of the first records of a file; none if it can't be read."""
    try:
        if path.suffix.lower() == ".zip":
            for document in islice(sources.documents(path), 1):
                rows = [row for row in sources.parse_list(document) if isinstance(row, dict)]
                yield from (set(row) for row in rows[:_RECORDS])
        elif path.suffix.lower() in _ARCHIVES:
            for document in islice(sources.tar_documents(path), 1):
                parsed = sources.parse(document)
                yield set(parsed) if isinstance(parsed, dict) else set()
        elif path.suffix.lower() in (".csv", ".parquet"):
            yield set(tables.columns_of(path))
        else:
            records = call_logs.log_records(path, DatasetBuilder())
            yield from (set(record) for _, record in islice(records, _RECORDS))
    except (FormatError, OSError):
        return


_ROWS = 100_000
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "prompt": (
        *("prompt", "question", "query", "messages", "instruction", "input", "user_message"),
        *("request", "problem", "text"),
    ),
    "target": ("target", "model", "llm", "model_name", "model_id", "engine", "deployment"),
    "correct": (
        *("correct", "is_correct", "iscorrect", "label", "score", "rating", "quality", "reward"),
        *("grade", "judge_score", "passed", "pass", "success", "accuracy", "feedback", "rank"),
    ),
    "query": ("query_id", "question_id", "prompt_id", "id"),
    "benchmark": ("benchmark", "dataset"),
    "domain": ("domain", "category", "subject", "topic"),
    "cost": ("cost", "cost_usd", "usd", "total_cost", "spend", "cost_dollars"),
    "input_tokens": ("input_tokens", "prompt_tokens", "tokens_in"),
    "output_tokens": ("output_tokens", "completion_tokens", "tokens_out"),
}
"""The usual names of each column, the likeliest first."""
_SCALES = ((0, 1), (-1, 1), (1, 5), (0, 5), (1, 7), (1, 10), (0, 10), (0, 100))
_LOW_IS_GOOD = {"rank", "grade", "error", "errors", "loss", "penalty", "mistakes"}
_SEPARATORS = ("_", "|", ".", "-", " ", ":")


@final
@dataclass(frozen=True, kw_only=True)
class SourceDoubt:
    """What a source doesn't tell.

    Attributes:
        option: The field of `Columns` that settles it; `scale` is given as text.
        question: The question, for people.
        choices: The possible answers, the likeliest first.
        fix: What to give on the command line.
        is_reckless: Whether taking the first would risk reading the labels wrongly.
    """

    option: str
    question: str
    choices: tuple[str, ...]
    fix: str
    is_reckless: bool = False

    def settle(self, columns: Columns, choice: str) -> Columns:
        """The columns with this choice.

        Raises:
            ConfigError: It isn't a scale where one is asked for.
        """
        settled: Any = Scale.parse(choice, None) if self.option == "scale" else choice
        return replace(columns, **{self.option: settled})


@final
@dataclass(frozen=True, kw_only=True)
class SourceGuess:
    """How a source is read.

    Attributes:
        format: A name in `FORMATS`.
        columns: The columns of a user's own table, and the scale.
        facts: What was found, by name, for people.
        doubts: What should be asked before it is read.
    """

    format: str
    columns: Columns
    facts: Mapping[str, str]
    doubts: tuple[SourceDoubt, ...] = ()


def guess_source(
    paths: Sequence[Path], *, given: Columns | None = None, named: str | None = None
) -> SourceGuess:
    """Guess how a source is to be read.

    Args:
        paths: Files or folders.
        given: Columns that are known; they aren't guessed.
        named: The format, if it is known.

    Raises:
        FormatError: A source doesn't exist or can't be read.
        ConfigError: There is no such format, or a column that is needed can't be found; the message
            says how to name it.
    """
    given = given or Columns()
    if named is not None and named not in FORMATS:
        raise ConfigError(f"there is no format {named!r}; the formats are {', '.join(FORMATS)}")
    kind = named or recognised_format(paths)
    if kind is not None and kind not in ("long", "wide"):
        return SourceGuess(format=kind, columns=given, facts={"format": FORMATS[kind].summary})
    table = _Table(sources.expand(paths, tables.SUFFIXES)[0])
    return table.long(given) if table.is_long(given, kind) else table.wide(given)


class _Table:
    """The first records of a table, by column."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cells: dict[str, list[object]] = {}
        names = tables.columns_of(path)
        for _, record in islice(
            tables.records(path, DatasetBuilder(), needs=(), wants=names), _ROWS
        ):
            for name, cell in record.items():
                self.cells.setdefault(name, []).append(cell)
        self.doubts: list[SourceDoubt] = []

    def is_long(self, given: Columns, kind: str | None) -> bool:
        if given.targets or kind == "wide":
            return False
        return kind == "long" or given.target is not None or bool(self._like("target"))

    def long(self, given: Columns) -> SourceGuess:
        """A row per query and target."""
        prompt = given.prompt or self._prompt()
        target = given.target or self._one("target", "Which column names the language model?")
        correct = given.correct or self._one("correct", "Which column has the score or label?")
        columns = replace(given, prompt=prompt, target=target, correct=correct)
        columns = self._with_others(columns)
        columns = self._with_scale(columns, correct, self.cells.get(correct, []))
        if columns.repeats is None and self._has_repeats(columns):
            columns = replace(columns, repeats="mean")
        count = len({str(cell) for cell in self.cells.get(target, ())})
        facts = {
            "format": f"a table with a row per query and model, {count:,} models",
            **_told(columns),
        }
        if columns.repeats:
            facts["repeats"] = "rows of the same query and model are averaged"
        return self._guess("long", columns, facts)

    def wide(self, given: Columns) -> SourceGuess:
        """A row per query, a column per target."""
        columns = self._with_others(replace(given, prompt=given.prompt or self._prompt()))
        columns = replace(columns, cost=given.cost, input_tokens=None, output_tokens=None)
        named = {value for value in vars(columns).values() if isinstance(value, str)}
        others = {name for name in self.cells if _plain(name) in _OTHERS} | named
        found = list(given.targets) or [
            name for name in self.cells if name not in others and self._is_scored(name)
        ]
        if not found:
            raise ConfigError(
                f"{self.path} has neither a column of models nor columns of scores, but "
                f"{list(self.cells)}; name them with --target-column and --correct-column, or "
                "with --target-columns"
            )
        if not given.targets:
            columns, found = self._with_patterns(columns, found)
        columns = replace(columns, targets=tuple(found))
        labels = [columns.of_target(name)[0] for name in found]
        scores = [cell for label in labels for cell in self.cells.get(label, ())]
        columns = self._with_scale(columns, labels[0], scores)
        facts = {"format": f"a table with a column per model: {', '.join(found)}"}
        return self._guess("wide", columns, {**facts, **_told(columns)})

    def _guess(self, kind: str, columns: Columns, facts: Mapping[str, str]) -> SourceGuess:
        return SourceGuess(format=kind, columns=columns, facts=facts, doubts=tuple(self.doubts))

    def _like(self, option: str) -> list[str]:
        """The columns that have a usual name, the likeliest first."""
        by_name = {_plain(name): name for name in self.cells}
        return [by_name[usual] for usual in _NAMES[option] if usual in by_name]

    def _one(self, option: str, question: str) -> str:
        found = self._like(option)
        if not found:
            raise ConfigError(
                f"{self.path} has no column that is known to hold the {_WORDS[option]}; it has "
                f"{list(self.cells)}; name one with --{option}-column"
            )
        if len(found) > 1:
            self._doubt(option, question, found)
        return found[0]

    def _prompt(self) -> str:
        if self._like("prompt"):
            return self._one("prompt", "Which column has the prompt?")
        texts = {
            name: [c for c in cells if isinstance(c, str)] for name, cells in self.cells.items()
        }
        mean = {name: sum(map(len, c)) / len(c) for name, c in texts.items() if c}
        found = sorted(mean, key=lambda name: -mean[name])[:3]
        if not found:
            raise ConfigError(f"{self.path} has no text; name a column with --prompt-column")
        self._doubt("prompt", "Which column has the prompt?", found)
        return found[0]

    def _doubt(self, option: str, question: str, found: Sequence[str]) -> None:
        fix = f"--{option}-column NAME"
        doubt = SourceDoubt(option=option, question=question, choices=tuple(found), fix=fix)
        self.doubts.append(doubt)

    def _with_others(self, columns: Columns) -> Columns:
        """The optional columns that are there; an id only if it belongs to one prompt."""
        for option in ("benchmark", "domain", "cost", "input_tokens", "output_tokens"):
            found = self._like(option)
            if found and getattr(columns, option) is None:
                columns = replace(columns, **{option: found[0]})  # type: ignore[arg-type]
        prompts = [str(cell) for cell in self.cells.get(columns.prompt or "", ())]
        for name in self._like("query") if columns.query is None else ():
            pairs = set(zip(map(str, self.cells[name]), prompts, strict=False))
            if len(pairs) == len({one for one, _ in pairs}) == len({text for _, text in pairs}):
                return replace(columns, query=name)
        return columns

    def _has_repeats(self, columns: Columns) -> bool:
        key = columns.query or columns.prompt or ""
        rows = list(zip(self.cells[key], self.cells[columns.target or ""], strict=False))
        return len({(str(one), str(name)) for one, name in rows}) < len(rows)

    def _is_scored(self, name: str) -> bool:
        """Whether all cells of a column are scores, and it isn't an amount."""
        words = set(_plain(name).split("_"))
        if words & _AMOUNTS:
            return False
        try:
            return any(values.score(cell, name) is not None for cell in self.cells[name])
        except DataError:
            return False

    def _with_patterns(self, columns: Columns, found: list[str]) -> tuple[Columns, list[str]]:
        """The patterns of labels and amounts, as in `{target}_score`, and the targets' names."""
        for pattern in _patterns("correct"):
            before, _, after = pattern.partition(TARGET)
            fitting = [n for n in found if n.startswith(before) and n.endswith(after)]
            if len(fitting) == len(found):
                columns = replace(columns, correct=pattern)
                found = [n.removeprefix(before).removesuffix(after) for n in found]
                break
        for option in ("cost", "input_tokens", "output_tokens"):
            for pattern in _patterns(option) if getattr(columns, option) is None else ():
                if all(pattern.replace(TARGET, name) in self.cells for name in found):
                    columns = replace(columns, **{option: pattern})  # type: ignore[arg-type]
                    break
        return columns, found

    def _with_scale(self, columns: Columns, name: str, cells: Sequence[object]) -> Columns:
        """The scale of the scores, where it isn't 0 to 1."""
        if columns.scale is not None:
            return columns
        try:
            found = [values.score(cell, name) for cell in cells if values.verdict(cell) is None]
        except DataError as error:
            raise ConfigError(f"{error}; name another column with --correct-column") from None
        scores = {score for score in found if score is not None}
        if not scores or (min(scores) >= 0 and max(scores) <= 1):
            return columns
        holding = [(a, b) for a, b in _SCALES if a <= min(scores) and max(scores) <= b]
        choices = [f"{a}:{b}" if a < 0 else f"{a}-{b}" for a, b in holding]
        lowest = bool(_LOW_IS_GOOD & set(_plain(name).split("_")))
        if lowest:
            choices = [turned for a, b in holding for turned in (f"{b}:{a}", f"{a}:{b}")]
        seen = f"the scores in {name!r} go from {min(scores):g} to {max(scores):g}"
        is_whole = bool(holding) and {*holding[0]} <= scores
        if lowest or not is_whole:
            self.doubts.append(
                SourceDoubt(
                    option="scale",
                    question=f"{seen}; which are the worst and the best score, worst first?",
                    choices=tuple(choices[:4]),
                    fix="--scale WORST-BEST, such as --scale 1-5",
                    is_reckless=lowest or not holding or len(scores) < _FEW_SCORES,
                )
            )
        return replace(columns, scale=Scale.parse(choices[0], None)) if choices else columns


_FEW_SCORES = 3
_WORDS = {"target": "names of the models", "correct": "scores or labels"}
_AMOUNTS = {"cost", "costs", "usd", "price", "tokens", "seconds", "latency", "time", "id", "index"}
_OTHERS = {name for option in _NAMES for name in _NAMES[option] if option != "correct"}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _patterns(option: str) -> Iterator[str]:
    """The patterns of a target's column: its name, and a usual one before or after."""
    for usual in _NAMES[option]:
        for mark in _SEPARATORS:
            yield f"{TARGET}{mark}{usual}"
            yield f"{usual}{mark}{TARGET}"


def _told(columns: Columns) -> dict[str, str]:
    """The columns and the scale, for people."""
    shown = {"query": "ids", "correct": "scores", "target": "models"}
    named = {
        shown.get(option, option.replace("_", " ")): f"column {value!r}"
        for option, value in vars(columns).items()
        if isinstance(value, str) and option != "repeats"
    }
    if columns.scale is None:
        return {**named, "scale": "0 is wrong, 1 is right"}
    if columns.scale.ends is None:
        return {**named, "scale": f"right from {columns.scale.threshold:g} on"}
    worst, best = columns.scale.ends
    return {**named, "scale": f"{worst:g} is the worst, {best:g} the best"}
