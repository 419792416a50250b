"""Queries, labels and token counts: the dataset of a router, and merging of several.

A query is a prompt, as text or as chat messages. Its labels, one for each target, put it into one
of three consensus regimes (Table 1 and section 4.2 of the paper).

Different datasets are merged into one, and runs of the same questions into mean labels. Queries are
joined by id, targets by name.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias, TypeVar, final

import numpy as np
from jaxtyping import Bool, Float, Shaped
from numpy.typing import NDArray

from prefill_router.data.meaning import LabelMeaning
from prefill_router.errors import ConfigError, DataError
from prefill_router.short_repr import html_table, short_repr
from prefill_router.targets import Pool, Provider, RequestOptions, Target


@short_repr
@final
@dataclass(frozen=True)
class Message:
    """One turn of a chat.

    Attributes:
        role: `system`, `user`, `assistant` or `tool`.
        content: The text of the turn.
    """

    role: str
    content: str


Prompt = str | tuple[Message, ...]
"""Plain text, or chat messages in order."""


@short_repr
@final
@dataclass(frozen=True, slots=True)
class Query:
    """One query.

    Attributes:
        id: Unique in its dataset, and the key of every join.
        prompt: Text or chat messages.
        benchmark: The benchmark it comes from; empty where unknown.
        domain: Its subject or category; empty where unknown.
        conversation: The conversation that it is a turn of; empty for none. Its turns share one
            person and one task, so they are split and resampled together.
    """

    id: str
    prompt: Prompt
    benchmark: str = ""
    domain: str = ""
    conversation: str = ""

    def __post_init__(self) -> None:
        if not self.id:
            raise DataError("a query has an empty id; give each query its own id")
        if isinstance(self.prompt, tuple) and not self.prompt:
            raise DataError(f"query {self.id!r} is a chat without messages; add at least one")


_ENCODER = json.JSONEncoder(ensure_ascii=False)


def prompt_key(prompt: Prompt) -> str:
    """SHA-256 of a prompt's content, in hexadecimal: the same for equal prompts only.

    A lone surrogate, which UTF-8 can't encode, is hashed as it is instead of raising an error.
    """
    plain = prompt if isinstance(prompt, str) else [[m.role, m.content] for m in prompt]
    text = _ENCODER.encode(plain)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def prompt_text(prompt: Prompt) -> str:
    """A prompt as one text; the turns of a chat are separated by blank lines."""
    return prompt if isinstance(prompt, str) else "\n\n".join(m.content for m in prompt)


Table = Float[NDArray[np.float64], "query target"]
"""One number per query and target; NaN where missing."""
MOST_TOKENS: Final = 1e9
"""The most tokens of a prompt or an answer; a larger number is a mistake."""
MOST_COST: Final = 1e5
"""The highest cost of an answer in US dollars; a larger number is a mistake."""
_MOST = {"input_tokens": MOST_TOKENS, "output_tokens": MOST_TOKENS, "recorded_cost": MOST_COST}

OPTIONAL_TABLES: Final = ("runs", "label_error", "propensity")
"""The tables that most datasets don't have."""


@final
@dataclass(frozen=True, eq=False)
class RoutingDataset:
    """Queries, a pool, and the outcome of each target on each query.

    Axis order is query, then target; NaN means *not measured*, never a wrong answer.

    Attributes:
        queries: The queries, with distinct ids.
        pool: The targets, in the tables' column order.
        correct: Labels in [0, 1], or NaN.
        input_tokens: Tokens of the prompt as billed, or NaN.
        output_tokens: Tokens of the answer as billed, reasoning included, or NaN.
        recorded_cost: US dollars that the answer cost, or NaN where only tokens are known.
        runs: The number of runs of which the label is the mean, or NaN where it is one or unknown;
            None where all are.
        label_error: The probability that the label is wrong, below 0.5, or NaN where it is exact;
            None where all are.
        propensity: The probability with which the label was to be observed, where chance decided
            that, whether it was observed or not. NaN where chance didn't decide, None where it
            never did.
        meaning: What the labels mean.

    Raises:
        DataError: Ids repeat, shapes differ, labels leave [0, 1], counts are negative or absurd, or
            an observed label had no chance of being observed.
    """

    queries: tuple[Query, ...]
    pool: Pool
    correct: Table
    input_tokens: Table
    output_tokens: Table
    recorded_cost: Table
    runs: Table | None = None
    label_error: Table | None = None
    propensity: Table | None = None
    meaning: LabelMeaning = LabelMeaning()  # noqa: RUF009

    def __post_init__(self) -> None:
        shape = (len(self.queries), len(self.pool))
        for name, table in self._existing_tables().items():
            if table.shape != shape:
                raise DataError(
                    f"{name} has the shape {table.shape}; {shape[0]} queries and {shape[1]} "
                    f"targets need {shape}"
                )
            if (table < 0).any() or np.isinf(table).any():
                raise DataError(
                    f"{name} holds negative or infinite numbers; NaN marks what is missing"
                )
        if (self.correct > 1).any():
            worst = float(np.nanmax(self.correct))
            raise DataError(f"correct holds {worst}; labels are in [0, 1], or missing")
        if self.runs is not None and ((self.runs < 1) | (self.runs % 1 > 0)).any():
            raise DataError(
                "runs holds numbers below 1 or numbers that aren't whole; give whole numbers "
                "from 1, or NaN for a single run"
            )
        if self.label_error is not None and (self.label_error >= 0.5).any():
            raise DataError(
                f"label_error holds {float(np.nanmax(self.label_error))}; it must be below "
                "0.5, since a label that is wrong half of the time says nothing"
            )
        if self.propensity is not None:
            _check_propensity(self.propensity, self.correct)
        for name, most in _MOST.items():
            if (getattr(self, name) > most).any():
                raise DataError(
                    f"{name} holds {float(np.nanmax(getattr(self, name))):g}; more than "
                    f"{most:,.0f} is treated as a mistake"
                )
        if len(self._row_of) != len(self.queries):
            raise DataError(f"query ids repeat: {self._repeated_ids()[:5]}; each must be unique")

    @classmethod
    def of(
        cls,
        queries: Sequence[Query],
        pool: Pool,
        correct: Table,
        *,
        input_tokens: Table | None = None,
        output_tokens: Table | None = None,
        recorded_cost: Table | None = None,
        runs: Table | None = None,
        label_error: Table | None = None,
        propensity: Table | None = None,
        meaning: LabelMeaning | None = None,
    ) -> "RoutingDataset":
        """A dataset in which the tables that aren't given are NaN throughout, or None."""
        missing = missing_table((len(queries), len(pool)))
        tables = [missing if t is None else t for t in (input_tokens, output_tokens, recorded_cost)]
        counts = tables[0], tables[1], tables[2], runs, label_error, propensity
        return cls(tuple(queries), pool, correct, *counts, meaning or LabelMeaning())

    def __len__(self) -> int:
        return len(self.queries)

    def __repr__(self) -> str:
        labels = int((~np.isnan(self.correct)).sum())
        return (
            f"<RoutingDataset: {len(self):,} queries, {len(self.pool)} targets, {labels:,} labels>"
        )

    def _repr_html_(self) -> str:
        rows = [
            (
                name,
                *(_known_mean(table[:, k]) for table in (self.correct, self.observed_cost)),
                labels,
            )
            for k, name in enumerate(self.pool.names)
            for labels in [int((~np.isnan(self.correct[:, k])).sum())]
        ]
        return html_table(repr(self), ("target", "accuracy", "$ per answer", "labels"), rows)

    @cached_property
    def query_ids(self) -> tuple[str, ...]:
        """The queries' ids, in order."""
        return tuple(query.id for query in self.queries)

    @cached_property
    def prompt_keys(self) -> tuple[str, ...]:
        """The content hash of each query's prompt, in order."""
        return tuple(prompt_key(query.prompt) for query in self.queries)

    @cached_property
    def domains(self) -> tuple[str, ...]:
        """The benchmark and domain of each query, as one name, of which each is held once."""
        pairs = [(query.benchmark, query.domain) for query in self.queries]
        names = {pair: " / ".join(filter(None, pair)) for pair in set(pairs)}
        return tuple(names[pair] for pair in pairs)

    @cached_property
    def conversations(self) -> tuple[str, ...] | None:
        """A name for each query that is the same for a conversation's turns; None without any."""
        if not any(query.conversation for query in self.queries):
            return None
        return tuple(
            f"turns of {query.conversation}" if query.conversation else f"query {query.id}"
            for query in self.queries
        )

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return {query.id: row for row, query in enumerate(self.queries)}

    @cached_property
    def observed_cost(self) -> Table:
        """US dollars of each answer: as recorded, or from observed tokens and list prices."""
        prices = np.array(
            [(t.input_price, t.output_price) for t in self.pool], dtype=np.float64
        )  # None becomes NaN
        by_tokens = (self.input_tokens * prices[:, 0] + self.output_tokens * prices[:, 1]) / 1e6
        return np.where(np.isnan(self.recorded_cost), by_tokens, self.recorded_cost)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of ids, prompts, targets and labels with their errors, in any order."""
        names = self.pool.names
        columns = np.argsort(names)
        digest = hashlib.sha256(repr(sorted(names)).encode())
        for row in sorted(range(len(self)), key=lambda i: self.queries[i].id):
            digest.update(f"\n{self.queries[row].id}\t{self.prompt_keys[row]}\t".encode())
            digest.update(self.correct[row, columns].tobytes())
            if self.label_error is not None:
                digest.update(self.label_error[row, columns].tobytes())
        return digest.hexdigest()

    def rows(self, ids: Iterable[str]) -> list[int]:
        """Positions of these queries.

        Raises:
            DataError: The dataset lacks some of them.
        """
        wanted = list(ids)
        lacking = [i for i in wanted if i not in self._row_of]
        if lacking:
            raise DataError(
                f"the dataset lacks {len(lacking)} of {len(wanted)} queries, the first is "
                f"{lacking[0]!r}; is this the dataset that the ids come from?"
            )
        return [self._row_of[i] for i in wanted]

    def select(
        self, ids: Iterable[str] | None = None, *, targets: Iterable[str] | None = None
    ) -> "RoutingDataset":
        """The subset with these queries and targets, in the order given; itself if that is all."""
        wanted = self.query_ids if ids is None else tuple(ids)
        names = self.pool.names if targets is None else tuple(targets)
        if (wanted, names) == (self.query_ids, self.pool.names):
            return self
        rows = list(range(len(self))) if ids is None else self.rows(wanted)
        cells = np.ix_(rows, self.pool.indices(names))
        shape = len(rows), len(names)
        subset = RoutingDataset(
            tuple(self.queries[row] for row in rows),
            self.pool.select(names),
            **{
                name: table[cells] if any(table.strides) else missing_table(shape)
                for name, table in self._existing_tables().items()
            },
            meaning=self.meaning,
        )
        if "prompt_keys" in vars(self):  # known keys are neither hashed again nor copied
            vars(subset)["prompt_keys"] = tuple(self.prompt_keys[row] for row in rows)
        return subset

    def with_pool(self, pool: Pool) -> "RoutingDataset":
        """The same answers with another pool's prices; it must have the same names in order.

        Raises:
            DataError: The names differ.
        """
        if pool.names != self.pool.names:
            raise DataError(f"the pool has {pool.names}; the dataset needs {self.pool.names}")
        return replace(self, pool=pool)

    def _existing_tables(self) -> dict[str, Table]:
        optional = {name: getattr(self, name) for name in OPTIONAL_TABLES}
        return {name: table for name, table in optional.items() if table is not None} | {
            "correct": self.correct,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "recorded_cost": self.recorded_cost,
        }

    def _repeated_ids(self) -> list[str]:
        earlier_ids: set[str] = set()
        return [i for i in self.query_ids if i in earlier_ids or earlier_ids.add(i)]  # type: ignore[func-returns-value]


def _known_mean(values: NDArray[np.float64]) -> float:
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else float("nan")


def _check_propensity(propensity: Table, correct: Table) -> None:
    if (propensity > 1).any():
        raise DataError(
            f"propensity holds {float(np.nanmax(propensity))}; probabilities are in [0, 1]"
        )
    impossible = int(((propensity == 0) & ~np.isnan(correct)).sum())
    if impossible:
        raise DataError(
            f"propensity is 0 for {impossible:,} labels that were observed; give the "
            "probability that the label would be observed, or NaN if chance didn't decide it"
        )


def missing_table(shape: tuple[int, int]) -> Table:
    """A table of NaN that takes no memory; it can't be written to."""
    return np.broadcast_to(np.float64(np.nan), shape)


CUT = 0.5
"""A soft label counts as correct from this value on, where a statistic needs two classes."""


@final
class Regime(StrEnum):
    """Whether all, some or none of the targets measured on a query answered it correctly."""

    ALL_CORRECT = "all correct"
    ALL_INCORRECT = "all incorrect"
    DISAGREEMENT = "disagreement"
    UNMEASURED = "unmeasured"


def binary(correct: Table) -> Table:
    """Labels cut at 0.5: 1, 0, or NaN where missing."""
    return np.where(np.isnan(correct), np.nan, correct >= CUT)


def regimes(correct: Table) -> Shaped[NDArray[Any], " query"]:
    """The consensus regime of each query, over the targets measured on it.

    Args:
        correct: Labels, NaN where missing.

    Returns:
        One `Regime` value per query.
    """
    labels = binary(correct)
    right, measured = np.nansum(labels, axis=1), (~np.isnan(labels)).sum(axis=1)
    return np.select(
        [measured == 0, right == measured, right == 0],
        [str(Regime.UNMEASURED), str(Regime.ALL_CORRECT), str(Regime.ALL_INCORRECT)],
        default=str(Regime.DISAGREEMENT),
    ).astype(np.str_)


Prefer = Literal["first", "last"]
_Named = TypeVar("_Named", Target, Provider)
_PlacedTables: TypeAlias = tuple[tuple[NDArray[np.int64], ...], NDArray[np.float64]]
_TABLES: Final = ("correct", *OPTIONAL_TABLES, "input_tokens", "output_tokens", "recorded_cost")
_LABEL: Final = 1 + len(OPTIONAL_TABLES)
"""The number of leading tables that describe the label; the others describe the answer."""
_ADVICE: Final = "leave one out, or choose which one counts (--prefer first or --prefer last)"
_RUNS: Final = "; if they are runs of the same questions, --repeats mean averages them"


def merge(
    datasets: Mapping[str, RoutingDataset],
    *,
    prefer: Prefer | None = None,
    repeats: Literal["mean"] | None = None,
) -> RoutingDataset:
    """Merge datasets; outcomes that none of them measured are missing.

    Queries and targets keep the order of first appearance. Token counts and cost of an answer come
    from one dataset, the first that has any, since they belong together.

    Args:
        datasets: The datasets by name; error messages use these names.
        prefer: Which dataset counts where two contradict each other; None makes that an error.
        repeats: `mean` where they are runs of the same questions: each label, count and cost is the
            mean of the runs that have it.

    Raises:
        ConfigError: There are fewer than two datasets.
        DataError: A query has different prompts in two datasets, labels mean different things, or,
            without `prefer`, labels or prices contradict each other.
    """
    if len(datasets) < 2:
        raise ConfigError(f"{len(datasets)} dataset given; name two or more to merge")
    queries: dict[str, Query] = {}
    for name, dataset in datasets.items():
        for query in dataset.queries:
            queries[query.id] = _merge_queries(queries.get(query.id, query), query, name)
    pool = _merge_pools(datasets, prefer)
    shape = (len(_TABLES), len(queries), len(pool))
    row = {query_id: i for i, query_id in enumerate(queries)}
    placed = [_place_tables(dataset, row, pool) for dataset in datasets.values()]
    if repeats is not None:
        _refuse_chance(datasets)
        tables = _average_runs(placed, shape)
    else:
        tables = np.full(shape, np.nan)
        for (name, dataset), (cells, new) in zip(datasets.items(), placed, strict=True):
            contradicted = _contradictory_fields(tables[cells][0], new[0])
            if contradicted.any() and prefer is None:
                raise _make_conflict(name, dataset, tables[cells][0], contradicted)
            tables[cells] = _merge_answers(tables[cells], new, contradicted, prefer)
    merged = dict(zip(_TABLES, tables, strict=True))
    empty = [name for name in OPTIONAL_TABLES if np.isnan(merged[name]).all()]
    return RoutingDataset(
        tuple(queries.values()),
        pool,
        **{name: table for name, table in merged.items() if name not in empty},
        meaning=_same_meaning(datasets),
    )


def _same_meaning(datasets: Mapping[str, RoutingDataset]) -> LabelMeaning:
    """What the labels of all datasets mean: scores from 0 to 1 may be among right and wrong.

    Raises:
        DataError: They mean different things.
    """
    meanings = {name: dataset.meaning for name, dataset in datasets.items()}
    plain, scores = LabelMeaning(), LabelMeaning(kind="score")
    if set(meanings.values()) == {plain, scores}:
        return scores
    first = next(iter(meanings))
    for name, meaning in meanings.items():
        if meaning != meanings[first]:
            raise DataError(
                f"the labels of {first} and of {name} mean different things: "
                f"{meanings[first].to_dict()} and {meaning.to_dict()}; import both with the same "
                "--scale and --threshold"
            )
    return meanings[first]


def _refuse_chance(datasets: Mapping[str, RoutingDataset]) -> None:
    """The mean of labels that chance selected has neither a known error nor a known propensity."""
    for name, dataset in datasets.items():
        if dataset.label_error is not None or dataset.propensity is not None:
            raise DataError(
                f"{name} has labels with an error or a propensity, which can't be averaged; "
                "leave out --repeats mean"
            )


def _place_tables(dataset: RoutingDataset, row: Mapping[str, int], pool: Pool) -> _PlacedTables:
    """A dataset's tables, and their positions in the merged one."""
    rows = [row[query_id] for query_id in dataset.query_ids]
    unknown = np.full(dataset.correct.shape, np.nan)
    optional = (getattr(dataset, table) for table in _TABLES)
    tables = np.stack([unknown if table is None else table for table in optional])
    return np.ix_(range(len(_TABLES)), rows, pool.indices(dataset.pool.names)), tables


def _merge_queries(first: Query, query: Query, name: str) -> Query:
    if first.prompt != query.prompt:
        raise DataError(
            f"query {query.id!r} has another prompt in {name} than in an earlier dataset; give "
            "the queries of one dataset other ids (prefill-router import --query-column)"
        )
    return replace(
        first,
        benchmark=first.benchmark or query.benchmark,
        domain=first.domain or query.domain,
        conversation=first.conversation or query.conversation,
    )


def _merge_pools(datasets: Mapping[str, RoutingDataset], prefer: Prefer | None) -> Pool:
    targets: dict[str, Target] = {}
    providers: dict[str, Provider] = {}
    for name, dataset in datasets.items():
        for provider in dataset.pool.providers:
            _merge_named(provider, providers, f"provider {provider.name!r}", name, prefer)
        for target in dataset.pool:
            _merge_named(target, targets, f"target {target.name!r}", name, prefer)
    dates = {dataset.pool.prices_date for dataset in datasets.values()}
    return Pool(
        tuple(targets.values()),
        dates.pop() if len(dates) == 1 else None,
        tuple(providers.values()),
    )


def _merge_named(
    new: _Named, merged: dict[str, _Named], what: str, dataset: str, prefer: Prefer | None
) -> None:
    """Keep a target or provider: the more complete of two that agree."""
    old = merged.setdefault(new.name, new)
    fields: dict[str, Any] = _set_fields(old)
    others: dict[str, Any] = _set_fields(new)
    if fields.items() <= others.items():
        merged[new.name] = new
    elif not others.items() <= fields.items():
        if prefer is None:
            differing = sorted(k for k in {*fields, *others} if fields.get(k) != others.get(k))
            raise DataError(
                f"{what} has another {', '.join(differing)} in {dataset} than in an earlier "
                f"dataset; {_ADVICE}"
            )
        merged[new.name] = old if prefer == "first" else new


def _set_fields(part: Target | Provider) -> dict[str, Any]:
    nothing = (None, (), RequestOptions())
    return {name: value for name, value in vars(part).items() if value not in nothing}


def _contradictory_fields(known: Table, found: Table) -> Bool[NDArray[np.bool_], "query target"]:
    differ: NDArray[np.bool_] = ~np.isnan(known) & ~np.isnan(found) & (known != found)
    return differ


def _merge_answers(
    old: NDArray[np.float64],
    new: NDArray[np.float64],
    contradicted: Bool[NDArray[np.bool_], "query target"],
    prefer: Prefer | None,
) -> NDArray[np.float64]:
    """Merge two answers to each query of each target: labels first, then counts and cost."""
    first, second = (new, old) if prefer == "last" else (old, new)
    is_only_second = np.isnan(first[0]) & ~np.isnan(second[0])
    label = np.where(is_only_second, second[:_LABEL], first[:_LABEL])
    # Where two contradict each other, the preferred answer is taken as a whole.
    has_counts = contradicted | ~np.isnan(first[_LABEL:]).all(axis=0)
    return np.concatenate([label, np.where(has_counts, first[_LABEL:], second[_LABEL:])])


def _average_runs(placed: Sequence[_PlacedTables], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """The mean of each table over the runs that have it; for `runs`, the number with a label."""
    total, weight = np.zeros(shape), np.zeros(shape)
    for cells, tables in placed:
        is_known = ~np.isnan(tables)
        runs = np.fmax(np.nan_to_num(tables[1]), 1)
        is_known[1] = is_known[0]
        total[cells] += np.where(is_known, np.nan_to_num(tables) * runs, 0)
        weight[cells] += is_known * runs
    total[1] = weight[1] ** 2  # divided by the weight below, it is the number of runs
    return np.where(weight > 0, total / np.fmax(weight, 1), np.nan)


def _make_conflict(
    name: str,
    dataset: RoutingDataset,
    old: Table,
    contradicted: Bool[NDArray[np.bool_], "query target"],
) -> DataError:
    query, target = map(int, np.argwhere(contradicted)[0])
    return DataError(
        f"{int(contradicted.sum()):,} labels in {name} contradict an earlier dataset, the first "
        f"of query {dataset.query_ids[query]!r} and target {dataset.pool.names[target]!r}: "
        f"{dataset.correct[query, target]:g}, where it was {old[query, target]:g}; {_ADVICE}"
        + _RUNS
    )
