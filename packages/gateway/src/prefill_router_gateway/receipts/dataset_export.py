"""Makes a dataset for fitting a router from receipts, feedback, and labelled samples of requests.

A sampled request is a query of its own, with the probability with which each of its labels was to
be observed. Other receipts, and samples for which nothing was drawn, count where their answers have
feedback, by prompt and conversation. Chance didn't choose which those are. What a person asked of
an agent is one query, whatever requests it took: the one target that gave all answers has the label
(`person_turns`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np

from prefill_router.data import Prompt, Query, RoutingDataset, Table, prompt_key, prompt_text
from prefill_router.errors import DataError, PrefillRouterError
from prefill_router.targets import Pool, Target
from prefill_router_gateway.receipts.labels import LabelledSample, RepeatedRequest
from prefill_router_gateway.receipts.person_turns import PersonTurn
from prefill_router_gateway.receipts.rows import Feedback, latest_scores, prompt_of
from prefill_router_gateway.records import ASIDE, Receipt

_NO_PROMPT = "without a prompt"
_NO_FEEDBACK = "without feedback"
_NOT_ANSWERED = "not answered"
_NOT_IN_POOL = "answered by a target that isn't in the pool"
_NOT_DRAWN = "sampled, but nothing was asked yet"
_NO_TEXT = "with a prompt that can't be written to a file, since it has a lone surrogate"
_ASIDE = "titles, topics and summaries of agents"
_UNREADABLE = "sampled, but their texts can't be read"


@final
@dataclass(frozen=True)
class DatasetExport:
    """A dataset of the answers that were scored.

    Attributes:
        dataset: A query for each sampled request, named by its decision, and for each distinct
            prompt of the others within a conversation, in order of time; labels where an answer was
            scored.
        sources: The number of answers that each source scored.
        times: When the first and the last request arrived, in seconds since 1970.
        receipts: The number of receipts in it.
        left_out: The number of receipts that were left out, by reason.
        notes: What to know before fitting on it.
    """

    dataset: RoutingDataset
    receipts: int
    left_out: Mapping[str, int]
    notes: tuple[str, ...]
    sources: Mapping[str, int] = field(default_factory=dict)
    times: tuple[float, float] = (0.0, 0.0)


@dataclass
class _Cell:
    """The values of one target's answers to one prompt."""

    scores: list[float] = field(default_factory=list)
    input_tokens: list[float] = field(default_factory=list)
    output_tokens: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)


def export(
    receipts: Iterable[tuple[Receipt, Sequence[Feedback]]],
    *,
    pool: Pool | None = None,
    samples: Mapping[str, LabelledSample] | None = None,
    turns: Mapping[str, PersonTurn] | None = None,
    errors: Mapping[str, float] | None = None,
    unscored: bool = False,
) -> DatasetExport:
    """Make a dataset from receipts with prompts and their feedback, and from labelled samples.

    A label is the mean score of a target's answers to a prompt in a conversation. The score of an
    answer is the mean of its sources' latest scores. Token counts and costs are means too, and
    missing where they were only estimated; those of a turn are of its first answer.

    Args:
        receipts: Receipts, each with the latest score of each source; they are read one by one,
            and only answered requests count.
        pool: The targets and their prices; by default the targets in the receipts, without prices.
        samples: Sampled requests by their decision's id, as `labelled_samples` reads them; those
            for which nothing was drawn count by their feedback alone.
        turns: The turns of requests that don't stand alone, as `turns_by_request` reads them.
        errors: The error of each source of the samples' labels, in place of their own.
        unscored: Whether answers without feedback are kept too, without a label.

    Raises:
        DataError: No receipt can be used; the message says why.
    """
    rows = _ExportRows(pool, samples or {}, errors or {})
    for turn in _group_by_turn(receipts, turns or {}):
        rows.add(turn, unscored=unscored)
    if not rows.times:
        raise _no_rows_error(rows.left_out)
    listed = pool or Pool(tuple(Target(name=name) for name in sorted(rows.names)))
    dataset = _make_dataset(rows.queries, rows.cells, listed)
    times, notes = rows.times, tuple(_list_notes(dataset))
    span = min(times), max(times)
    return DatasetExport(dataset, len(times), rows.left_out, notes, rows.sources, span)


@final
class _ExportRows:
    """The queries and the targets' answers to them, as receipts are added.

    Args:
        pool: The targets; None for those in the receipts.
        samples: As in `export`.
        errors: The same.

    Attributes:
        names: The targets.
        queries: The queries, by key.
        cells: The answers, by the query's key and the target.
        left_out: How many requests can't be used, by reason.
        sources: How many labels each source gave.
        times: When each request that is used arrived, in seconds since 1970.
    """

    def __init__(
        self,
        pool: Pool | None,
        samples: Mapping[str, LabelledSample],
        errors: Mapping[str, float],
    ) -> None:
        self._has_pool, self._samples, self._errors = pool is not None, samples, errors
        self.names: dict[str, None] = dict.fromkeys(() if pool is None else pool.names)
        self.queries: dict[str, Query] = {}
        self.cells: dict[tuple[str, str], _Cell] = {}
        self.left_out, self.sources = Counter[str](), Counter[str]()
        self.times: list[float] = []

    def add(self, turn: "_ScoredTurn", *, unscored: bool) -> None:
        """Add a request or a turn, or count why it can't be used."""
        receipt = turn.receipt
        if not self._has_pool:
            self.names |= dict.fromkeys([*receipt.choice.correctness, *receipt.choice.order])
        sample = self._samples.get(turn.ids[-1])
        if turn.why:
            why = turn.why
        elif sample is not None and (sample.questions is not None or not turn.scores):
            why = self._add_sample(turn, sample)
        else:
            why = self._add_answer(turn, sample, unscored=unscored)
        if why:
            self.left_out[why] += 1
        else:
            self.times.append(turn.at)

    def _add_sample(self, turn: "_ScoredTurn", sample: LabelledSample) -> str:
        """Add a sampled request with its labels; returns why it can't be used, or nothing."""
        receipt, scores = turn.receipt, turn.scores
        why = _add_sample(
            sample, receipt, scores, self.names, self._errors, self.cells, self.queries
        )
        if not why:
            self.sources.update(_label_sources(sample, receipt, scores))
        return why

    def _add_answer(
        self, turn: "_ScoredTurn", sample: LabelledSample | None, *, unscored: bool
    ) -> str:
        """Add an answer with its feedback; returns why it can't be used, or nothing."""
        receipt, scores, target = turn.receipt, turn.scores, turn.receipt.outcome.target
        prompt = _read_prompt(receipt, sample)
        why = _why_not(receipt, prompt, bool(scores) or unscored, self.names)
        if why or target is None or prompt is None:
            return why or _NOT_ANSWERED
        conversation = _conversation(receipt, scores)
        key = prompt_key(prompt) + (f" in {conversation}" if conversation else "")
        self.queries[key] = Query(key, prompt, conversation=conversation)
        _add_scores(self.cells.setdefault((key, target), _Cell()), receipt, scores)
        self.sources["user"] += bool(scores)
        return ""


def _conversation(receipt: Receipt, scores: Sequence[Feedback]) -> str:
    """The conversation whose turns depend on each other; empty for a request by itself.

    Those are an agent's turns, which share one task, and turns that share one outcome.
    """
    is_agents = receipt.details.get("agent", {}).get("agent") is not None
    is_shared = any(score.conversation is not None for score in scores)
    return (receipt.choice.session or "") if is_agents or is_shared else ""


@dataclass
class _ScoredTurn:
    """A request that stands alone, or the first answer of a turn, with the scores of all of it.

    Attributes:
        receipt: Its receipt.
        at: When its last request arrived, in seconds since 1970.
        ids: The decisions of its requests.
        scores: The latest score of each source.
        why: Why it can't be used; empty where it may be.
    """

    receipt: Receipt
    at: float
    ids: tuple[str, ...]
    scores: list[Feedback]
    why: str = ""

    def take(self, receipt: Receipt, scores: Sequence[Feedback]) -> None:
        """Take a further request of the turn."""
        if self.receipt.outcome.kind != "answered":
            self.receipt = receipt
        self.at = receipt.at
        self.scores = latest_scores([*self.scores, *scores])


def _group_by_turn(
    receipts: Iterable[tuple[Receipt, Sequence[Feedback]]], turns: Mapping[str, PersonTurn]
) -> Iterator[_ScoredTurn]:
    """Requests and turns in the order in which they ended."""
    open_turns: dict[str, _ScoredTurn] = {}
    for receipt, scores in receipts:
        name, turn = receipt.choice.id, turns.get(receipt.choice.id)
        if turn is None:
            why = _ASIDE if receipt.details.get("agent", {}).get("kind") in ASIDE else ""
            yield _ScoredTurn(receipt, receipt.at, (name,), list(scores), why)
            continue
        first = turn.ids[0]
        if first in open_turns:
            open_turns[first].take(receipt, scores)
        else:
            open_turns[first] = _ScoredTurn(receipt, receipt.at, turn.ids, list(scores), turn.why)
        if name == turn.ids[-1]:
            yield open_turns.pop(first)
    yield from open_turns.values()


def _read_prompt(receipt: Receipt, sampled: LabelledSample | None) -> Prompt | None:
    """What the encoder read, as the sample or the receipt has it; None where neither has it."""
    if sampled is None:
        return None if receipt.prompt is None else prompt_of(receipt.prompt)
    try:
        return RepeatedRequest(sampled.sample).scored_prompt(receipt.scored)
    except PrefillRouterError:
        return None


def _why_not(
    receipt: Receipt, prompt: Prompt | None, is_wanted: bool, names: Mapping[str, None]
) -> str:
    """Why a receipt can't be used; empty where it can."""
    if receipt.outcome.kind != "answered" or receipt.outcome.target is None:
        return _NOT_ANSWERED
    if prompt is None:
        return _NO_PROMPT
    if not is_wanted:
        return _NO_FEEDBACK
    if not _is_text(prompt):
        return _NO_TEXT
    return "" if receipt.outcome.target in names else _NOT_IN_POOL


def _no_rows_error(left_out: Mapping[str, int]) -> DataError:
    reasons = ", ".join(f"{count:,} {why}" for why, count in left_out.items())
    if not reasons:
        return DataError("there are no receipts in that time; nothing can be exported")
    advice = {
        _NO_PROMPT: "to keep prompts, set in the gateway's settings: receipts: {prompts: true}",
        _NO_FEEDBACK: "send scores of answers to the gateway's /v1/feedback",
        _NOT_IN_POOL: "give the pool with those targets",
        _NOT_DRAWN: "label the samples with: prefill-router learn",
    }
    wanted = "; ".join(words for why, words in advice.items() if why in left_out)
    return DataError(f"no receipt can be used: {reasons}" + (f"; {wanted}" if wanted else ""))


def _add_sample(
    sampled: LabelledSample,
    receipt: Receipt,
    scores: Sequence[Feedback],
    names: Mapping[str, None],
    errors: Mapping[str, float],
    cells: dict[tuple[str, str], _Cell],
    rows: dict[str, Query],
) -> str:
    """Add the query of a sampled request; returns why it can't be used, or nothing."""
    name, client_target = sampled.sample.id, receipt.outcome.target
    if sampled.questions is None:
        return _NOT_DRAWN
    prompt = _read_prompt(receipt, sampled)
    if prompt is None:
        return _UNREADABLE
    if not _is_text(prompt):
        return _NO_TEXT
    rows[name] = Query(name, prompt, conversation=_conversation(receipt, scores))
    for target in names:
        cell = cells.setdefault((name, target), _Cell())
        cell.chances.append(sampled.questions.propensity.get(target, 0.0))
        own = scores if target == client_target else ()
        label = sampled.label(target, own, errors)
        if label is not None and cell.chances[0] > 0:
            cell.scores.append(label[0])
            cell.errors += [label[1]] if label[1] else []
        answer = sampled.answers.get(target)
        if target == client_target:
            _add_usage(cell, receipt)
        elif answer is not None and not answer.failure:
            _add_counts(cell, answer.input_tokens, answer.output_tokens)
            cell.costs += [] if answer.cost is None else [answer.cost]
    return ""


def _label_sources(
    sampled: LabelledSample, receipt: Receipt, scores: Sequence[Feedback]
) -> Iterable[str]:
    query_ids = () if sampled.questions is None else sampled.questions.drawn
    for target in query_ids:
        yield from sampled.sources(target, scores if target == receipt.outcome.target else ())


def _add_scores(cell: _Cell, receipt: Receipt, scores: Sequence[Feedback]) -> None:
    if scores:
        cell.scores.append(sum(score.score for score in scores) / len(scores))
    _add_usage(cell, receipt)


def _add_usage(cell: _Cell, receipt: Receipt) -> None:
    usage = receipt.outcome.usage
    if usage is not None and not receipt.outcome.usage_is_estimated:
        _add_counts(cell, usage.input_tokens, usage.output_tokens)
    if receipt.cost is not None and not receipt.cost_is_estimated:
        cell.costs.append(receipt.cost)


def _add_counts(cell: _Cell, input_tokens: int | None, output_tokens: int | None) -> None:
    for counts, count in ((cell.input_tokens, input_tokens), (cell.output_tokens, output_tokens)):
        if count is not None and count >= 0:  # a provider may report impossible counts
            counts.append(count)


def _is_text(prompt: Prompt) -> bool:
    turns = () if isinstance(prompt, str) else prompt
    try:
        "".join([prompt_text(prompt), *(turn.role for turn in turns)]).encode()
    except UnicodeEncodeError:
        return False
    return True


def _make_dataset(
    rows: Mapping[str, Query], cells: Mapping[tuple[str, str], _Cell], pool: Pool
) -> RoutingDataset:
    row = {key: i for i, key in enumerate(rows)}
    column = {name: k for k, name in enumerate(pool.names)}
    tables = {name: np.full((len(row), len(column)), np.nan) for name in vars(_Cell())}
    for (key, target), cell in cells.items():
        for name, table in tables.items():
            values = getattr(cell, name)
            table[row[key], column[target]] = np.mean(values) if values else np.nan
    return RoutingDataset.of(
        tuple(rows.values()),
        pool,
        tables["scores"],
        input_tokens=tables["input_tokens"],
        output_tokens=tables["output_tokens"],
        recorded_cost=tables["costs"],
        label_error=_table_or_none(tables["errors"]),
        propensity=_table_or_none(tables["chances"]),
    )


def _table_or_none(table: Table) -> Table | None:
    """A table that most datasets don't have; None where it says nothing."""
    return None if np.isnan(table).all() else table


def _list_notes(dataset: RoutingDataset) -> Iterable[str]:
    labels = (~np.isnan(dataset.correct)).sum(axis=0)
    lacking = [name for name, n in zip(dataset.pool.names, labels.tolist(), strict=True) if not n]
    if lacking:
        yield (
            f"no answer of {', '.join(lacking)} was scored; fit only on the others, or let these "
            "answer some requests"
        )
    unknown = [
        name
        for name, costs in zip(dataset.pool.names, dataset.observed_cost.T, strict=True)
        if np.isnan(costs).all()
    ]
    if len(unknown) < len(dataset.pool):
        unpriced = [name for name in unknown if not dataset.pool[name].has_price]
        unheard = [name for name in unknown if name not in unpriced]
        if unpriced:
            yield f"the costs of {', '.join(unpriced)} are unknown; give a pool with prices"
        if unheard:
            yield (
                f"the lengths of answers of {', '.join(unheard)} are unknown, and so are their "
                "costs; give a length when fitting, with --assume-output-tokens"
            )
    if dataset.propensity is not None:
        return
    yield (
        "each prompt was answered by the target that was chosen for it, so the labels have a "
        "selection bias: they are of prompts that seemed to suit their target; a share of traffic "
        "that isn't routed reduces the bias"
    )
