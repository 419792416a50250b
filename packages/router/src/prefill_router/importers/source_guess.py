"""What a user's source is: its format, the columns of a table, and the scale of its scores.

A public format is recognised by the fields of its first records. What a column of a table holds is
read from its name and its cells (`column_names`). A doubt is what the source doesn't say: each has
the possible readings, the likeliest first, and the option that settles it. A guess that could
turn the labels round isn't made.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, final

from prefill_router.errors import ConfigError, DataError, FormatError, name_option
from prefill_router.importers import call_logs, column_names as names, sources, tables, values
from prefill_router.importers.builder import MOST_TARGETS, DatasetBuilder
from prefill_router.importers.own_tables import NO_EFFORT
from prefill_router.importers.registry import FORMATS
from prefill_router.importers.values import TARGET, Columns, Scale
from prefill_router.targets import EFFORTS, is_budget

_FILES, _MEMBERS, _RECORDS = 20, 3, 50
_ARCHIVES = (*sources.ZIPS, ".tar", ".tgz", ".gz", ".xz", ".bz2")


def recognise_format(paths: Sequence[Path]) -> str | None:
    """The public format, or log, of which the sources have a record; None if there is none.

    A user's own table isn't recognised, whatever its columns.

    Args:
        paths: Files or folders.

    Raises:
        FormatError: A source doesn't exist, or a folder has no file that can be read.
    """
    files = sources.expand(paths, (*call_logs.LOG_SUFFIXES, *tables.SUFFIXES, *_ARCHIVES))
    formats, _ = FORMATS.load_all()
    for path in files[:_FILES]:
        for fields in _read_fields(path):
            for name, kind in formats.items():
                if any(signature <= fields for signature in kind.signatures):
                    return name
    return None


def _read_fields(path: Path) -> Iterator[set[str]]:
    """The fields of the first records of a file; none if it can't be read."""
    suffix = tables.suffix_of(path)
    try:
        if suffix in sources.ZIPS:
            for document in islice(sources.documents(path), _MEMBERS):
                parsed = sources.parse(document)
                rows = parsed if isinstance(parsed, list) else [parsed]
                yield from (set(row) for row in rows[:_RECORDS] if isinstance(row, dict))
        elif suffix in _ARCHIVES:
            for document in islice(sources.tar_documents(path), 1):
                parsed = sources.parse(document)
                yield set(parsed) if isinstance(parsed, dict) else set()
        elif suffix in (".json", ".jsonl", ".ndjson"):
            records = call_logs.log_records(path, DatasetBuilder())
            yield from (set(record) for _, record in islice(records, _RECORDS))
        else:
            yield set(tables.columns_of(path))
    except (FormatError, OSError):
        return


_ROWS = 100_000
_SCALES = ((0, 1), (-1, 1), (1, 5), (0, 5), (1, 7), (1, 10), (0, 10), (0, 100))
_SEPARATORS = ("_", "|", ".", "-", " ", ":", "/")
_FEW_SCORES = 3
_CONTAINERS = ("models.", "targets.", "results.", "outputs.", "answers.", "scores.")
_AMOUNTS = ("cost", "input_tokens", "output_tokens")
_QUESTIONS = {
    "prompt": "Which column has the prompt?",
    "target": "Which column names the language model?",
    "correct": "Which column has the score or label?",
}


@final
@dataclass(frozen=True, kw_only=True)
class SourceDoubt:
    """What a source doesn't tell.

    Attributes:
        option: The field of `Columns` that settles it; `scale` is given as text.
        question: The question, for people.
        choices: The possible answers, the likeliest first.
        fix: What to give on the command line.
        python: What to give to `Columns` in Python.
        is_reckless: Whether taking the first would risk reading the labels wrongly.
    """

    option: str
    question: str
    choices: tuple[str, ...]
    fix: str
    python: str
    is_reckless: bool = False

    def question_with_choices(self) -> str:
        """The question, with the possible answers."""
        return f"{self.question} ({', '.join(self.choices)})" if self.choices else self.question

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
    paths: Sequence[Path], *, columns: Columns | None = None, format_name: str | None = None
) -> SourceGuess:
    """Guess how a source is to be read.

    Args:
        paths: Files or folders.
        columns: Columns that are known; they aren't guessed.
        format_name: The format, if it is known.

    Raises:
        FormatError: A source doesn't exist or can't be read.
        ConfigError: There is no such format, or a column that is needed can't be found; the message
            says how to name it.
    """
    columns = columns or Columns()
    if format_name is not None and format_name not in FORMATS:
        raise ConfigError(
            f"there is no format {format_name!r}; the formats are {', '.join(FORMATS)}"
        )
    kind = format_name or recognise_format(paths)
    if kind is not None and kind not in ("long", "wide"):
        return SourceGuess(format=kind, columns=columns, facts={"format": FORMATS[kind].summary})
    files = sources.expand(paths, tables.SUFFIXES)
    table = _Table(files[0], is_alone=len(files) == 1)
    return table.long(columns) if table.is_long(columns, kind) else table.wide(columns)


class _Table:
    """The first records of a table, by column.

    Args:
        path: The table.
        is_alone: Whether it is the only one.
    """

    def __init__(self, path: Path, *, is_alone: bool) -> None:
        self.path = path
        self.cells: dict[str, list[object]] = {}
        wanted = tables.flat_columns_of(path)
        rows = tables.flat_records(path, DatasetBuilder(), needs=(), wants=wanted)
        count = 0
        for count, (_, record) in enumerate(islice(rows, _ROWS), 1):
            for name, cell in record.items():
                cells = self.cells.setdefault(name, [])
                cells += [None] * (count - 1 - len(cells))
                cells.append(cell)
        for cells in self.cells.values():
            cells += [None] * (count - len(cells))
        tables.check_count(self.cells, path)
        self.is_whole = is_alone and count < _ROWS
        self.doubts: list[SourceDoubt] = []

    def is_long(self, columns: Columns, kind: str | None) -> bool:
        if columns.targets or kind == "wide" or TARGET in (columns.correct or ""):
            return False
        if kind == "long" or columns.target is not None:
            return True
        return bool(self._find_columns("target")) and not self._has_pattern_of_targets(columns)

    def long(self, columns: Columns) -> SourceGuess:
        """A row per query and target, or per query with lists of targets and scores."""
        columns = replace(
            columns,
            prompt=columns.prompt or self._find_prompt(),
            target=columns.target or self._find_target(),
            correct=columns.correct or self._find_correct(),
        )
        columns = self._with_effort(self._with_others(columns))
        scores = self._list_items(columns.correct)
        columns = self._with_scale(columns, columns.correct or "", scores)
        if columns.repeats is None and self._has_repeats(columns):
            columns = replace(columns, repeats="mean")
        pairs = zip_longest(self._list_items(columns.target), self._list_items(columns.effort))
        targets = {(str(model), str(effort)) for model, effort in pairs if model is not None}
        if len(targets) == 1 and self.is_whole:
            model, _ = targets.pop()
            self._refuse_one_target(f"column {columns.target!r} names one model, {model!r}")
        facts = {
            "format": f"a table with a row per query and model, {len(targets):,} models",
            **_shown_columns(columns),
        }
        if columns.repeats:
            facts["repeats"] = "rows of the same query and model are averaged"
        return self._make_guess("long", columns, facts)

    def wide(self, options: Columns) -> SourceGuess:
        """A row per query, columns for each target."""
        columns = self._with_others(replace(options, prompt=options.prompt or self._find_prompt()))
        columns = replace(
            columns,
            cost=options.cost,
            input_tokens=options.input_tokens,
            output_tokens=options.output_tokens,
        )
        left_out: dict[str, str] = {}
        if not options.targets:
            columns, left_out = self._with_targets(columns)
        columns = self._with_amounts(columns)
        if not columns.targets or (len(columns.targets) < 2 and self.is_whole):
            self._refuse_targets(columns.targets, left_out)
        labels = [columns.of_target(name)[0] for name in columns.targets]
        scores = [cell for label in labels for cell in self.cells.get(label, ())]
        columns = self._with_scale(columns, labels[0], scores)
        facts = {"format": f"a table with columns per model: {', '.join(columns.targets)}"}
        facts |= _shown_columns(columns)
        if left_out:
            facts["no models"] = ", ".join(f"{name!r} ({why})" for name, why in left_out.items())
        return self._make_guess("wide", columns, facts)

    def _make_guess(self, kind: str, columns: Columns, facts: Mapping[str, str]) -> SourceGuess:
        return SourceGuess(format=kind, columns=columns, facts=facts, doubts=tuple(self.doubts))

    def _refuse_targets(self, targets: Sequence[str], left_out: Mapping[str, str]) -> None:
        """Say which columns were looked for, and why others weren't taken.

        Raises:
            ConfigError: Always.
        """
        columns_text = f"one column of scores, {targets[0]!r}" if targets else "no column of scores"
        reasons = ", ".join(f"{name!r} ({why})" for name, why in left_out.items())
        self._refuse_one_target(
            f"there is no column of models, and {columns_text}"
            + (f"; these hold numbers and aren't taken for scores: {reasons}" if reasons else "")
        )

    def _refuse_one_target(self, seen: str) -> None:
        raise ConfigError(
            f"{self.path}: {seen}; a router chooses between two targets or more. Looked for a "
            "column that names models (such as model, llm, model_name) with a column of scores. "
            "Also looked for a column of scores per model (such as small_score, large_score). The "
            "columns "
            f"are {list(self.cells)}. "
            + name_option(
                "Name them with --target-column and --correct-column, or with "
                "--target-columns small,large; in Python with Columns(target=..., correct=...) or "
                "Columns(targets=(...))",
                "Give columns=Columns(target=..., correct=...), or columns=Columns(targets=(...))",
            )
        )

    def _list_items(self, column: str | None) -> list[object]:
        """The cells of a column, and the items of those that are lists."""
        items: list[object] = []
        for cell in self.cells.get(column or "", ()):
            items += cell if isinstance(cell, list) else [cell]
        return items

    def _find_columns(self, option: str) -> list[str]:
        """The columns whose names and cells fit an option, the likeliest first."""
        usual = [
            name
            for name in names.usual_columns(option, self.cells)
            if self._fits_option(option, name)
        ]
        by_word = [
            name
            for name in names.columns_by_word(option, self.cells)
            if name not in usual and self._fits_option(option, name)
        ]
        return usual + by_word if option == "correct" or not usual else usual

    def _fits_option(self, option: str, name: str) -> bool:
        """Whether the cells of a column can be what the option needs."""
        cells = [cell for cell in self.cells[name] if cell is not None and cell != ""]
        if option == "prompt":
            return bool(cells) and all(_is_prompt(cell) for cell in cells)
        items = [cell for cell in self._list_items(name) if cell is not None and cell != ""]
        if option in ("correct", *_AMOUNTS):
            return names.are_scores(name, items)
        if not items or not all(isinstance(cell, str) for cell in items):
            return option == "query" and bool(items)
        return option != "target" or self._are_names(name, items)

    def _are_names(self, name: str, cells: Sequence[object]) -> bool:
        """Whether texts can be the names of targets: numbers only under a usual name."""
        is_usual = name in names.usual_columns("target", [name])
        return len(set(cells)) <= MOST_TARGETS and (is_usual or not names.are_scores(name, cells))

    def _find_target(self) -> str:
        candidates = self._find_columns("target")
        texts = [name for name in candidates if not names.are_scores(name, self._list_items(name))]
        first = next(iter(texts or candidates), "")
        others = [name for name in candidates if name != first and not self._are_alike(first, name)]
        return self._choose_first("target", [first, *others] if first else [])

    def _are_alike(self, first: str, second: str) -> bool:
        """Whether two columns name the same things, such as a model's name and its number."""
        pairs = set(
            zip(map(str, self._list_items(first)), map(str, self._list_items(second)), strict=False)
        )
        return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})

    def _find_correct(self) -> str:
        candidates = self._find_columns("correct") or self._other_scores()
        return self._choose_first(
            "correct", candidates or names.usual_columns("correct", self.cells)[:1]
        )

    def _other_scores(self) -> list[str]:
        """The columns that have scores by their cells alone."""
        return [
            name
            for name in self._find_scored(Columns())
            if not names.is_text(name) and not names.why_no_scores(name, self._list_items(name))
        ]

    def _choose_first(self, option: str, candidates: Sequence[str]) -> str:
        """The first of the columns that an option may be; a doubt where it isn't the only one."""
        if len(candidates) == 1:
            return candidates[0]
        question = _QUESTIONS[option]
        if not candidates:
            question += f" None of {list(self.cells)} has such a name and such cells."
        self._add_doubt(option, question, candidates, is_reckless=not candidates)
        return candidates[0] if candidates else ""

    def _find_prompt(self) -> str:
        candidates = self._find_columns("prompt")
        if candidates:
            return self._choose_first("prompt", candidates)
        texts = {
            name: [c for c in cells if isinstance(c, str)] for name, cells in self.cells.items()
        }
        mean = {name: sum(map(len, c)) / len(c) for name, c in texts.items() if c}
        longest = sorted(mean, key=lambda name: -mean[name])[:3]
        if len(longest) == 1:
            self._add_doubt("prompt", _QUESTIONS["prompt"], longest)
            return longest[0]
        return self._choose_first("prompt", longest)

    def _add_doubt(
        self, option: str, question: str, candidates: Sequence[str], *, is_reckless: bool = False
    ) -> None:
        self.doubts.append(
            SourceDoubt(
                option=option,
                question=question,
                choices=tuple(candidates),
                fix=f"--{option}-column {candidates[0] if candidates else 'NAME'}",
                python=f"{option}={candidates[0] if candidates else 'NAME'!r}",
                is_reckless=is_reckless,
            )
        )

    def _with_effort(self, columns: Columns) -> Columns:
        """The column of reasoning efforts, if one holds nothing else."""
        for name in self._find_columns("effort") if columns.effort is None else ():
            cells = {str(cell).lower() for cell in self._list_items(name) if cell not in (None, "")}
            efforts = {cell for cell in cells if cell in EFFORTS or is_budget(cell)}
            if efforts and cells <= {*efforts, *NO_EFFORT}:
                return replace(columns, effort=name)
        return columns

    def _with_others(self, columns: Columns) -> Columns:
        """The optional columns that are there; an id only if it is one prompt's."""
        for option in ("benchmark", "domain", *_AMOUNTS):
            candidates = self._find_columns(option)
            if option == "cost":
                candidates = [name for name in candidates if not names.is_part_cost(name)]
            if candidates and getattr(columns, option) is None:
                columns = replace(columns, **{option: candidates[0]})  # type: ignore[arg-type]
        for name in self._find_columns("query") if columns.query is None else ():
            if self._is_id(name, columns):
                return replace(columns, query=name)
        return columns

    def _is_id(self, name: str, columns: Columns) -> bool:
        """Whether each value belongs to one prompt, and isn't the number of an answer."""
        prompts = [str(cell) for cell in self.cells.get(columns.prompt or "", ())]
        ids = [str(cell) for cell in self.cells[name]]
        if len(ids) != len(prompts) or len(set(zip(ids, prompts, strict=True))) > len(set(ids)):
            return False
        targets = self.cells.get(columns.target or "", ())
        is_row_id = len(set(ids)) == len(ids) and len(set(prompts)) < len(prompts)
        return not is_row_id or not targets or isinstance(next(iter(targets)), list)

    def _has_repeats(self, columns: Columns) -> bool:
        key = self.cells.get(columns.query or columns.prompt or "", [])
        named = self.cells.get(columns.target or "", [])
        efforts = self.cells.get(columns.effort or "", [None] * len(named))
        rows = list(zip(key, named, efforts, strict=False))
        return len({tuple(map(str, row)) for row in rows}) < len(rows)

    def _has_pattern_of_targets(self, columns: Columns) -> bool:
        """Whether there are scores in columns per target, in rows that are one query each."""
        prompts = [
            str(cell) for name in self._find_columns("prompt")[:1] for cell in self.cells[name]
        ]
        is_row_a_query = len(set(prompts)) == len(prompts)
        return is_row_a_query and bool(self._find_patterns(self._find_scored(columns)))

    def _find_scored(self, columns: Columns) -> list[str]:
        """The columns that hold numbers or labels, and nothing else that is known."""
        named = {value for value in vars(columns).values() if isinstance(value, str)}
        others = {
            usual for option, all_ in names.USUAL.items() if option != "correct" for usual in all_
        }
        return [
            name
            for name in self.cells
            if name not in named
            and names.plain_name(name) not in others
            and names.are_scores(name, self._list_items(name))
        ]

    def _with_targets(self, columns: Columns) -> tuple[Columns, dict[str, str]]:
        """The targets, the pattern of their labels, and why other numbers are no labels."""
        scored = self._find_scored(columns)
        if columns.correct is not None:
            named = tuple(name for c in scored if (name := columns.target_of(c)) is not None)
            return replace(columns, targets=named), {}
        patterns = self._find_patterns(scored)
        if patterns:
            if len(patterns) > 1:
                self._add_doubt(
                    "correct", _QUESTIONS["correct"], [pattern for pattern, _ in patterns]
                )
            pattern, targets = patterns[0]
            return replace(columns, correct=pattern, targets=targets), {}
        reasons = {name: names.why_no_scores(name, self.cells[name]) for name in scored}
        targets = tuple(name for name, why in reasons.items() if not why)
        return replace(columns, targets=targets), {n: why for n, why in reasons.items() if why}

    def _find_patterns(self, scored: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
        """The patterns of columns of labels, such as `{target}_score`, and their targets.

        A pattern must be that of all columns of labels, or be one of nested fields.
        """
        labels = [name for name in scored if not names.why_no_scores(name, ())]
        fitting: dict[tuple[str, ...], str] = {}
        for pattern in {p: None for name in labels for p in _patterns_of(name)}:
            columns = Columns(correct=pattern)
            targets = tuple(t for name in labels if (t := columns.target_of(name)) is not None)
            is_partial = len(targets) < len(labels) and "." not in pattern
            if len(targets) < 2 or is_partial or _have_several_scores(targets):
                continue
            columns_held = tuple(pattern.replace(TARGET, target) for target in targets)
            fitting[columns_held] = max(fitting.get(columns_held, ""), pattern, key=len)
        most = max(map(len, fitting), default=0)
        return [
            _without_container(pattern, columns_held)
            for columns_held, pattern in fitting.items()
            if len(columns_held) == most
        ]

    def _with_amounts(self, columns: Columns) -> Columns:
        """The patterns of the columns of costs and tokens, where all targets have them."""
        for option in _AMOUNTS:
            if getattr(columns, option) is None:
                patterns = self._find_amounts(option, columns.targets)
                if patterns:
                    columns = replace(columns, **{option: patterns[0]})  # type: ignore[arg-type]
        return columns

    def _find_amounts(self, option: str, targets: Sequence[str]) -> list[str]:
        """The patterns of a target's column of costs or tokens, the likeliest first."""
        patterns = {name.replace(target, TARGET) for target in targets[:1] for name in self.cells}
        rests = {p: p.replace(TARGET, "").strip("".join(_SEPARATORS)) for p in patterns}
        fitting = [
            pattern
            for pattern, rest in rests.items()
            if TARGET in pattern
            and (names.has_word(option, rest) or names.plain_name(rest) in names.USUAL[option])
            and not (option == "cost" and names.is_part_cost(rest))
            and all(pattern.replace(TARGET, target) in self.cells for target in targets)
        ]
        return sorted(fitting, key=lambda pattern: (len(names.words_of(rests[pattern])), pattern))

    def _with_scale(self, columns: Columns, name: str, cells: Sequence[object]) -> Columns:
        """The scale of the scores, where it isn't 0 to 1."""
        if columns.scale is not None:
            return columns
        try:
            numbers = [values.score(cell, name) for cell in cells if values.verdict(cell) is None]
        except DataError as error:
            self._add_doubt(
                "correct", f"{error}; which column has the scores?", (), is_reckless=True
            )
            return columns
        scores = {score for score in numbers if score is not None}
        ends = names.range_in(name) or ((1, 5) if names.are_stars(name) else None)
        if ends and scores and ends[0] <= min(scores) and max(scores) <= ends[1]:
            if not names.is_low_good(name):
                return replace(columns, scale=Scale(ends=ends))
        elif not scores or (min(scores) >= 0 and max(scores) <= 1):
            return columns
        return self._with_usual_scale(columns, name, scores)

    def _with_usual_scale(self, columns: Columns, name: str, scores: set[float]) -> Columns:
        """The first usual scale that holds the scores, with a doubt unless both ends are seen."""
        holding = [(a, b) for a, b in _SCALES if a <= min(scores) and max(scores) <= b]
        choices = [f"{a}:{b}" if a < 0 else f"{a}-{b}" for a, b in holding]
        lowest = names.is_low_good(name)
        if lowest:
            choices = [turned for a, b in holding for turned in (f"{b}:{a}", f"{a}:{b}")]
        range_text = f"the scores in {name!r} go from {min(scores):g} to {max(scores):g}"
        is_whole = bool(holding) and {*holding[0]} <= scores
        if lowest or not is_whole:
            is_reckless = lowest or not holding or len(scores) < _FEW_SCORES
            self.doubts.append(
                SourceDoubt(
                    option="scale",
                    question=f"{range_text}; which are the worst and the best score, worst first?",
                    choices=tuple(choices[:4]),
                    fix=f"--scale {'WORST-BEST' if is_reckless else choices[0]}",
                    python=f"scale=Scale(ends={_ends_text(choices, is_reckless=is_reckless)})",
                    is_reckless=is_reckless,
                )
            )
        return replace(columns, scale=Scale.parse(choices[0], None)) if choices else columns


def _ends_text(choices: Sequence[str], *, is_reckless: bool) -> str:
    """The likeliest ends of a scale as Python has them, or what to write there."""
    scale = None if is_reckless else Scale.parse(choices[0], None)
    return "(WORST, BEST)" if scale is None or scale.ends is None else str(scale.ends)


def _is_prompt(cell: object) -> bool:
    """Whether a cell can be a prompt: a text, or messages."""
    if isinstance(cell, list):
        return bool(cell) and all(isinstance(turn, Mapping) and "content" in turn for turn in cell)
    return isinstance(cell, str)


def _patterns_of(name: str) -> Iterator[str]:
    """The patterns of a column of labels: a word for labels before or after a target's name."""
    for place, mark in enumerate(name):
        if mark in _SEPARATORS and 0 < place < len(name) - 1:
            if names.has_word("correct", name[place + 1 :]):
                yield f"{TARGET}{name[place:]}"
            if names.has_word("correct", name[:place]):
                yield f"{name[: place + 1]}{TARGET}"


def _have_several_scores(targets: Sequence[str]) -> bool:
    """Whether these are the scores of each target, as `small.helpful` and `small.brief` are."""
    lasts = Counter(target.rpartition(".")[2] for target in targets if "." in target)
    return lasts.total() == len(targets) and all(
        count > 1 and last.isidentifier() for last, count in lasts.items()
    )


def _without_container(pattern: str, labels: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The pattern and the targets' names; `models.small.score` is of the target `small`."""
    for container in _CONTAINERS:
        if pattern.startswith(TARGET) and all(name.startswith(container) for name in labels):
            pattern = container + pattern
    columns = Columns(correct=pattern)
    return pattern, tuple(name for label in labels if (name := columns.target_of(label)))


def _shown_columns(columns: Columns) -> dict[str, str]:
    """The columns and the scale, for people."""
    words = {"query": "ids", "correct": "scores", "target": "models"}
    named = {
        words.get(option, option.replace("_", " ")): f"column {value!r}"
        for option, value in vars(columns).items()
        if isinstance(value, str) and option != "repeats"
    }
    if columns.scale is None:
        return {**named, "scale": "0 is wrong, 1 is right"}
    if columns.scale.ends is None:
        return {**named, "scale": f"right from {columns.scale.threshold:g} on"}
    worst, best = columns.scale.ends
    return {**named, "scale": f"{worst:g} is the worst, {best:g} the best"}
