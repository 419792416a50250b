"""Makes a dataset for fitting a router from receipts and feedback."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np

from prefill_router.data import Prompt, Query, RoutingDataset, prompt_key, prompt_text
from prefill_router.errors import DataError
from prefill_router.gateway.receipts.rows import Feedback, prompt_of
from prefill_router.gateway.records import Receipt
from prefill_router.targets import Pool, Target

_NO_PROMPT = "without a prompt"
_NO_FEEDBACK = "without feedback"
_NOT_ANSWERED = "not answered"
_NOT_IN_POOL = "answered by a target that isn't in the pool"
_NO_TEXT = "with a prompt that can't be written to a file, since it has a lone surrogate"


@final
@dataclass(frozen=True)
class DatasetExport:
    """A dataset of the answers that were scored.

    Attributes:
        dataset: A query for each distinct prompt; labels where a target's answer was scored.
        receipts: The number of receipts in it.
        left_out: The number of receipts that were left out, by reason.
        notes: What to know before fitting on it.
    """

    dataset: RoutingDataset
    receipts: int
    left_out: Mapping[str, int]
    notes: tuple[str, ...]


@dataclass
class _Cell:
    """The values of one target's answers to one prompt."""

    scores: list[float] = field(default_factory=list)
    given: list[float] = field(default_factory=list)
    written: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)


def export(
    receipts: Iterable[tuple[Receipt, Sequence[Feedback]]],
    *,
    pool: Pool | None = None,
) -> DatasetExport:
    """Make a dataset from receipts with prompts and their feedback.

    A label is the mean score of a target's answers to a prompt; the score of an answer is the mean
    of its sources' latest scores. Token counts and costs are means too, and missing where they
    were only estimated.

    Args:
        receipts: Receipts, each with the latest score of each source; they are read one by one,
            and only answered requests count.
        pool: The targets and their prices; by default the targets in the receipts, without prices.

    Raises:
        DataError: No receipt can be used; the message says why.
    """
    left_out: Counter[str] = Counter()
    cells: dict[tuple[str, str], _Cell] = {}
    prompts: dict[str, Prompt] = {}
    names: dict[str, None] = dict.fromkeys(() if pool is None else pool.names)
    used = 0
    for receipt, scores in receipts:
        target = receipt.outcome.target
        if pool is None:
            names.update(dict.fromkeys([*receipt.choice.correctness, *receipt.choice.order]))
        why = _why_not(receipt, scores, names)
        if why or target is None or receipt.prompt is None:
            left_out[why or _NOT_ANSWERED] += 1
            continue
        prompt = prompt_of(receipt.prompt)
        key = prompt_key(prompt)
        prompts[key] = prompt
        _add(cells.setdefault((key, target), _Cell()), receipt, scores)
        used += 1
    if not used:
        raise _nothing(left_out)
    listed = pool or Pool(tuple(Target(name=name) for name in sorted(names)))
    dataset = _dataset(prompts, cells, listed)
    return DatasetExport(dataset, used, left_out, tuple(_notes(dataset)))


def _why_not(receipt: Receipt, scores: Sequence[Feedback], names: Mapping[str, None]) -> str:
    """Why a receipt can't be used; empty where it can."""
    if receipt.outcome.kind != "answered" or receipt.outcome.target is None:
        return _NOT_ANSWERED
    if receipt.prompt is None:
        return _NO_PROMPT
    if not scores:
        return _NO_FEEDBACK
    if not _is_text(prompt_of(receipt.prompt)):
        return _NO_TEXT
    return "" if receipt.outcome.target in names else _NOT_IN_POOL


def _nothing(left_out: Mapping[str, int]) -> DataError:
    reasons = ", ".join(f"{count:,} {why}" for why, count in left_out.items())
    if not reasons:
        return DataError("there are no receipts in that time; nothing can be exported")
    advice = {
        _NO_PROMPT: "to keep prompts, set in the gateway's settings: receipts: {prompts: true}",
        _NO_FEEDBACK: "send scores of answers to the gateway's /v1/feedback",
        _NOT_IN_POOL: "give the pool with those targets",
    }
    wanted = "; ".join(words for why, words in advice.items() if why in left_out)
    return DataError(f"no receipt can be used: {reasons}" + (f"; {wanted}" if wanted else ""))


def _add(cell: _Cell, receipt: Receipt, scores: Sequence[Feedback]) -> None:
    cell.scores.append(sum(score.score for score in scores) / len(scores))
    usage = receipt.outcome.usage
    if usage is not None and not receipt.outcome.usage_is_estimated:
        for counts, count in (
            (cell.given, usage.input_tokens),
            (cell.written, usage.output_tokens),
        ):
            if count is not None and count >= 0:  # a provider may report impossible counts
                counts.append(count)
    if receipt.cost is not None and not receipt.cost_is_estimated:
        cell.costs.append(receipt.cost)


def _is_text(prompt: Prompt) -> bool:
    turns = () if isinstance(prompt, str) else prompt
    try:
        "".join([prompt_text(prompt), *(turn.role for turn in turns)]).encode()
    except UnicodeEncodeError:
        return False
    return True


def _dataset(
    prompts: Mapping[str, Prompt], cells: Mapping[tuple[str, str], _Cell], pool: Pool
) -> RoutingDataset:
    row = {key: i for i, key in enumerate(prompts)}
    column = {name: k for k, name in enumerate(pool.names)}
    tables = {name: np.full((len(row), len(column)), np.nan) for name in vars(_Cell())}
    for (key, target), cell in cells.items():
        for name, table in tables.items():
            values = getattr(cell, name)
            table[row[key], column[target]] = np.mean(values) if values else np.nan
    return RoutingDataset.of(
        tuple(Query(key, prompt) for key, prompt in prompts.items()),
        pool,
        tables["scores"],
        input_tokens=tables["given"],
        output_tokens=tables["written"],
        recorded_cost=tables["costs"],
    )


def _notes(dataset: RoutingDataset) -> Iterable[str]:
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
    yield (
        "each prompt was answered by the target that was chosen for it, so the labels have a "
        "selection bias: they are of prompts that seemed to suit their target; a share of traffic "
        "that isn't routed reduces the bias"
    )
