"""Labels from judges: language models that score answers by a rubric, or compare pairs of answers.

No reference answer is needed. A judge of another family than the judged target is taken where the
pool of judges has one, since models tend to favour their own kind. A pair, the answer that the
client got and one that was asked on the side, is judged in both orders. The label of an answer on
the side is then whether it is better, and that of the client's the share of comparisons that it
won: such labels rank the targets within a request, and don't say that an answer is right.
"""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, final

from prefill_router.client import PaidCall, Reply, Usage, cost_of, estimated_usage
from prefill_router.data import Query
from prefill_router.errors import ConfigError
from prefill_router.gateway.receipts import REVERSED, AnswerLabel, RepeatedRequest
from prefill_router.harness import Task
from prefill_router.harness.grading import (
    judge_prompt,
    pair_prompt,
    read_preference,
    read_verdict,
)
from prefill_router.learning.label_errors import UNKNOWN
from prefill_router.learning.paid_questions import PaidQuestion, PurseEntry
from prefill_router.targets import Pool, Target

RUBRIC: Final = "The answer is correct and complete, and does what was asked."
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
                f"the judge {unpriced[0]!r} has no price, so it can't be kept within the purse; "
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
        return [one.name for one in pool if family(self.judge_of(one)) == family(one)]

    def price(self, request: RepeatedRequest, target: Target, answer: str) -> float:
        """The expected US dollars of judging an answer."""
        read = estimated_usage(request.prompt, Reply(text=answer))
        both = 2 if self.form == "pairs" else 1
        given = (read.input_tokens or 0) + both * (read.output_tokens or 0) + _FRAME
        usage = Usage(input_tokens=given, output_tokens=_VERDICT)
        return both * (cost_of(usage, self.judge_of(target)) or 0.0)

    def questions(
        self, judged: JudgedAnswer, errors: Mapping[str, float], *, again: bool = False
    ) -> list[PaidQuestion]:
        """What to ask about an answer.

        Args:
            judged: The answer.
            errors: The estimated error of each source; `UNKNOWN` of others.
            again: Whether it was judged before, and is judged again to measure the judge.
        """
        request = judged.request
        judge, task = self.judge_of(judged.target), self._task(request)
        source = f"judge:{judge.name}"
        if self.form == "rubric":
            prompt = judge_prompt("judge", task, judged.answer, soft=False)
            told = [(source, prompt, _verdict)]
        else:
            reference = judged.reference or ""
            first = pair_prompt(task, judged.answer, reference)
            second = pair_prompt(task, reference, judged.answer)
            told = [(source, first, read_preference), (source + REVERSED, second, _reversed)]
        return [
            PaidQuestion(
                entry=PurseEntry(
                    id=request.sample.id,
                    target=judged.target.name,
                    purpose=name + (AGAIN if again else ""),
                ),
                asked=judge,
                prompt=prompt,
                rows=_Labelled(judged, name, errors.get(source, UNKNOWN), read, self._clock),
            )
            for name, prompt, read in told
        ]

    def _task(self, request: RepeatedRequest) -> Task:
        query = Query(request.sample.id, request.prompt)
        return Task(query=query, grader="judge", options={"rubric": self._rubric})


@dataclass(frozen=True)
class _Labelled:
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


def _verdict(reply: str) -> float | None:
    found = read_verdict(reply, soft=False)
    return None if found is None else found.score


def _reversed(reply: str) -> float | None:
    score = read_preference(reply)
    return None if score is None else 1 - score


def won_shares(
    labels: Iterable[AnswerLabel], routed: Mapping[str, str], *, at: float
) -> list[AnswerLabel]:
    """The labels of the answers that clients got, from the pairs that they were compared in.

    Args:
        labels: All labels of pairs.
        routed: The target that answered each request.
        at: The time of the labels.
    """
    lost: dict[str, list[AnswerLabel]] = defaultdict(list)
    for label in labels:
        if label.source.startswith("judge:") and label.target != routed.get(label.id):
            lost[label.id].append(label)
    return [
        AnswerLabel(
            id=name,
            target=routed[name],
            source=given[0].rater,
            at=at,
            score=1 - sum(one.score for one in given) / len(given),
            error=given[0].error,
        )
        for name, given in lost.items()
        if name in routed
    ]
