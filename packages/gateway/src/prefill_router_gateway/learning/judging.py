"""Labels from judges, and how often each source of labels errs.

No reference answer is needed. A judge of another family than the judged target is taken where the
pool of judges has one, since models tend to favour their own kind. A pair, the answer that the
client got and one that was asked on the side, is judged in both orders. The label of an answer on
the side is then whether it is better, and that of the client's the share of comparisons that it
won: such labels rank the targets within a request, and don't say that an answer is right.

How often each source of labels errs is estimated from how the sources agree. Two labels of one
answer that are wrong independently, with the probabilities a and b, contradict each other with the
probability a (1 - b) + b (1 - a). Where b is known, a follows; where a judge is asked the same
again, or about a pair in both orders, a = b. Mistakes that a judge repeats don't show in its
agreement with itself. So the estimate starts at `ASSUMED_ERROR` or above. It moves to what more
reliable sources say, as far as there are labels of both.
"""

import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, final

from prefill_router.data import CUT, Query
from prefill_router.endpoints import PaidCall, Reply, Usage, cost_of, estimate_usage
from prefill_router.errors import ConfigError
from prefill_router.grading import RUBRIC, judge_prompt, pair_prompt, read_preference, read_verdict
from prefill_router.runs import Task
from prefill_router.targets import Pool, Target
from prefill_router_gateway.learning.paid_questions import BudgetEntry, PaidQuestion
from prefill_router_gateway.receipts import (
    REVERSED,
    USER_ERROR,
    AnswerLabel,
    Feedback,
    RepeatedRequest,
)

ASSUMED_ERROR: Final = 0.05
"""The error of a judge of which nothing is known but its agreement with itself."""
BEHIND: Final = 20.0
"""So many comparisons weigh as much as what is assumed without them."""
MOST: Final = 0.45


@final
@dataclass(frozen=True, kw_only=True)
class LabelSource:
    """How good the labels of one source are.

    Attributes:
        name: The source.
        labels: The number of answers that it scored.
        repeated: The number of answers that it scored again.
        agreement: The share of these where it gave the same score; NaN without any.
        first: The share of pairs in both orders in which it preferred the answer that it was shown
            first, a tie as half; NaN without any. A judge without a bias of order has 0.5.
        by_users: The number of answers that users scored too.
        user_agreement: The share of these where both say the same; NaN without any, or for users.
        compared: The number of answers that a better known source scored too, verifiers or users.
        contradicted: The share of these with the opposite score; NaN without any.
        error: The estimated probability that one of its labels is wrong.
    """

    name: str
    labels: int
    repeated: int = 0
    agreement: float = math.nan
    first: float = math.nan
    by_users: int = 0
    user_agreement: float = math.nan
    compared: int = 0
    contradicted: float = math.nan
    error: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {name: None if value != value else value for name, value in vars(self).items()}


_Cell = tuple[str, str]
_Scores = Mapping[_Cell, list[float]]


def label_sources(
    labels: Iterable[AnswerLabel], feedback: Mapping[_Cell, Iterable[Feedback]]
) -> dict[str, LabelSource]:
    """Estimate every source's errors.

    Verifiers are taken as exact, users' feedback is compared with them, and judges with both.

    Args:
        labels: All labels, in order of time; several of one source about one answer are repeats.
        feedback: The latest feedback of each user on the answers of sampled requests.
    """
    by_source: dict[str, dict[_Cell, list[float]]] = defaultdict(lambda: defaultdict(list))
    reversed_: dict[str, dict[_Cell, float]] = defaultdict(dict)
    for label in labels:
        cell = label.id, label.target
        by_source[label.rater][cell].append(label.score)
        if label.source != label.rater:
            reversed_[label.rater][cell] = label.score
    for cell, ratings in feedback.items():
        scores = [rating.score for rating in ratings]
        if scores:
            by_source["user"][cell].append(sum(scores) / len(scores))
    sources: dict[str, LabelSource] = {}
    for name in sorted(by_source, key=_rank_trust):
        source = _measure_source(name, by_source[name], sources, by_source)
        sources[name] = replace(source, first=_first_preference(by_source[name], reversed_[name]))
    return sources


def _first_preference(scores: _Scores, reversed_: Mapping[_Cell, float]) -> float:
    """How often the answer that is shown first is preferred, of pairs judged in both orders."""
    totals = [
        (sum(scores[cell]) - reversed_score, reversed_score)
        for cell, reversed_score in reversed_.items()
        if len(scores[cell]) == 2
    ]
    return (
        sum((1 + total - reversed_score) / 2 for total, reversed_score in totals) / len(totals)
        if totals
        else math.nan
    )


def _rank_trust(name: str) -> tuple[int, str]:
    """Better known sources first."""
    return (0 if name.startswith("verifier:") else 1 if name == "user" else 2), name


def _measure_source(
    name: str,
    scores: _Scores,
    better: Mapping[str, LabelSource],
    by_source: Mapping[str, _Scores],
) -> LabelSource:
    if name.startswith("verifier:"):
        return LabelSource(name=name, labels=len(scores), error=0.0)
    repeats = [_is_right(s[0]) == _is_right(s[1]) for s in scores.values() if len(s) > 1]
    agreement = _average(repeats)
    pairs = [
        (_is_right(mine[-1]) != _is_right(by_source[other.name][cell][-1]), other)
        for cell, mine in scores.items()
        for other in better.values()
        if _rank_trust(other.name)[0] < _rank_trust(name)[0] and cell in by_source[other.name]
    ]
    off = _average(opposite for opposite, _ in pairs)
    users = [not opposite for opposite, other in pairs if other.name == "user"]
    their_error = sum(other.error for _, other in pairs) / len(pairs) if pairs else 0.0
    return LabelSource(
        name=name,
        labels=len(scores),
        repeated=len(repeats),
        agreement=agreement,
        by_users=len(users),
        user_agreement=_average(users),
        compared=len(pairs),
        contradicted=off,
        error=estimated_error(
            repeats=len(repeats),
            agreement=agreement,
            compared=len(pairs),
            contradicted=off,
            theirs=their_error,
            assumed=USER_ERROR if name == "user" else ASSUMED_ERROR,
        ),
    )


def estimated_error(
    *,
    repeats: int,
    agreement: float,
    compared: int,
    contradicted: float,
    theirs: float,
    assumed: float,
) -> float:
    """The estimated probability that a label of a source is wrong, at most `MOST`.

    Args:
        repeats: How often it scored the same answer again.
        agreement: The share of these with the same score.
        compared: How often a better known source scored the same answer.
        contradicted: The share of these with the opposite score.
        theirs: The error of those sources.
        assumed: The error without any comparison.
    """
    own = 0.0
    if repeats:
        differ = min(1 - agreement, 0.5)
        own = (1 - math.sqrt(1 - 2 * differ)) / 2 * repeats / (repeats + BEHIND)
    start = max(assumed, own)
    if not compared:
        return min(start, MOST)
    share = min(max((contradicted - theirs) / (1 - 2 * theirs), 0.0), MOST)
    return min((BEHIND * start + compared * share) / (BEHIND + compared), MOST)


def _average(flags: Iterable[bool]) -> float:
    values = list(flags)
    return sum(values) / len(values) if values else math.nan


def _is_right(score: float) -> bool:
    return score >= CUT


Form = Literal["rubric", "pairs"]
AGAIN: Final = ":again"
"""Ends the purpose of a judgment that is repeated."""
_FAMILIES: Mapping[str, str] = {
    **{name: name for name in ("claude", "command", "deepseek", "grok", "nova", "phi")},
    **dict.fromkeys(("gpt", "o", "chatgpt", "codex", "davinci"), "gpt"),
    **dict.fromkeys(("llama", "codellama"), "llama"),
    **dict.fromkeys(
        ("mistral", "mixtral", "ministral", "codestral", "magistral", "devstral"), "mistral"
    ),
    **dict.fromkeys(("gemini", "gemma", "palm", "bison"), "gemini"),
    **dict.fromkeys(("qwen", "qwq"), "qwen"),
}
"""The families of models by a word of their names."""
_FRAME, _VERDICT = 300, 120
"""About how many tokens the judge's instructions and its verdict have."""


@final
@dataclass(frozen=True, kw_only=True)
class JudgedAnswer:
    """An answer to be judged.

    Attributes:
        request: The request.
        target: Who answered.
        answer: The answer.
        reference: The answer that the client got; None where it is this one.
    """

    request: RepeatedRequest
    target: Target
    answer: str = field(repr=False)
    reference: str | None = field(default=None, repr=False)


def family(target: Target) -> str:
    """The family of a model by the first known word of its name, such as `gpt`; else its first."""
    name = (target.model or target.name).lower().rpartition("/")[2]
    words = re.findall("[a-z]+", name)
    return next((_FAMILIES[word] for word in words if word in _FAMILIES), [*words, name][0])


@final
class AnswerJudges:
    """The judges, and their questions.

    Args:
        pool: The judges; each needs a price.
        rubric: What a right, or the better, answer is.
        form: Whether answers are judged one by one, or in pairs.
        clock: Returns the time in seconds since 1970.

    Raises:
        ConfigError: A judge has no price, or the rubric is empty.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        rubric: str = RUBRIC,
        form: Form = "rubric",
        clock: Callable[[], float] = time.time,
    ) -> None:
        unpriced = [judge.name for judge in pool if not judge.has_price]
        if unpriced:
            raise ConfigError(
                f"the judge {unpriced[0]!r} has no price, so it can't be kept within the budget; "
                "give its prices in the judges' pool file, 0 where it is free"
            )
        if not rubric.strip():
            raise ConfigError("the rubric is empty; say what a right answer is")
        self.pool, self.form = pool.at_first(), form
        self._rubric, self._clock = rubric, clock

    def judge_of(self, target: Target) -> Target:
        """The first judge of another family; the first of all where there is none."""
        others = (judge for judge in self.pool if family(judge) != family(target))
        return next(others, self.pool.targets[0])

    def relatives(self, pool: Pool) -> list[str]:
        """The targets of a pool that only judges of their own family judge."""
        return [target.name for target in pool if family(self.judge_of(target)) == family(target)]

    def price(self, request: RepeatedRequest, target: Target, answer: str) -> float:
        """The expected US dollars of judging an answer."""
        read = estimate_usage(request.prompt, Reply(text=answer))
        calls = 2 if self.form == "pairs" else 1
        tokens = (read.input_tokens or 0) + calls * (read.output_tokens or 0) + _FRAME
        usage = Usage(input_tokens=tokens, output_tokens=_VERDICT)
        return calls * (cost_of(usage, self.judge_of(target)) or 0.0)

    def questions(
        self, judged: JudgedAnswer, errors: Mapping[str, float], *, again: bool = False
    ) -> list[PaidQuestion]:
        """What to ask about an answer.

        Args:
            judged: The answer.
            errors: The estimated error of each source; `ASSUMED_ERROR` of others.
            again: Whether it was judged before, and is judged again to measure the judge.
        """
        request = judged.request
        judge, task = self.judge_of(judged.target), self._make_task(request)
        source = f"judge:{judge.name}"
        if self.form == "rubric":
            prompt = judge_prompt("judge", task, judged.answer, soft=False)
            judgments = [(source, prompt, _read_verdict_score)]
        else:
            reference = judged.reference or ""
            first = pair_prompt(task, judged.answer, reference)
            second = pair_prompt(task, reference, judged.answer)
            judgments = [
                (source, first, read_preference),
                (source + REVERSED, second, _read_reversed_preference),
            ]
        return [
            PaidQuestion(
                entry=BudgetEntry(
                    id=request.sample.id,
                    target=judged.target.name,
                    purpose=name + (AGAIN if again else ""),
                ),
                target=judge,
                prompt=prompt,
                rows=_LabelMaker(
                    judged, name, errors.get(source, ASSUMED_ERROR), read, self._clock
                ),
            )
            for name, prompt, read in judgments
        ]

    def _make_task(self, request: RepeatedRequest) -> Task:
        query = Query(request.sample.id, request.prompt)
        return Task(query=query, grader="judge", options={"rubric": self._rubric})


@dataclass(frozen=True)
class _LabelMaker:
    """Makes the label of a judge's reply; none where it can't be read."""

    judged: JudgedAnswer
    source: str
    error: float
    read: Callable[[str], float | None]
    clock: Callable[[], float]

    def __call__(self, call: PaidCall) -> Sequence[AnswerLabel]:
        score = self.read(call.outcome.text) if isinstance(call.outcome, Reply) else None
        if score is None:
            return ()
        label = AnswerLabel(
            id=self.judged.request.sample.id,
            target=self.judged.target.name,
            source=self.source,
            at=self.clock(),
            score=score,
            error=self.error,
            cost=call.bill.charged,
        )
        return (label,)


def _read_verdict_score(reply: str) -> float | None:
    verdict = read_verdict(reply, soft=False)
    return None if verdict is None else verdict.score


def _read_reversed_preference(reply: str) -> float | None:
    score = read_preference(reply)
    return None if score is None else 1 - score


def label_client_answers(
    labels: Iterable[AnswerLabel], routed: Mapping[str, str], *, at: float
) -> list[AnswerLabel]:
    """The labels of the answers that clients got, from the pairs that they were compared in.

    Args:
        labels: All labels of pairs.
        routed: The target that answered each request.
        at: The time of the labels.
    """
    by_request: dict[str, list[AnswerLabel]] = defaultdict(list)
    for label in labels:
        if label.source.startswith("judge:") and label.target != routed.get(label.id):
            by_request[label.id].append(label)
    return [
        AnswerLabel(
            id=name,
            target=routed[name],
            source=beaten[0].rater,
            at=at,
            score=1 - sum(label.score for label in beaten) / len(beaten),
            error=beaten[0].error,
        )
        for name, beaten in by_request.items()
        if name in routed
    ]
