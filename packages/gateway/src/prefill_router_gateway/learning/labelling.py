"""Labels sampled requests within the budget: draws what to ask, asks, and grades.

Each step writes what it did before the next begins: the draw with its probabilities, then each
answer, then each label, both with their charges. So after an interruption it goes on from there.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import final

from prefill_router.database import Database
from prefill_router.errors import PrefillRouterError
from prefill_router.progress import Progress
from prefill_router.targets import Pool, Target
from prefill_router_gateway import Receipt
from prefill_router_gateway.learning.anchors import AnchorQuestion
from prefill_router_gateway.learning.judging import (
    AGAIN,
    AnswerJudges,
    JudgedAnswer,
    LabelSource,
    label_client_answers,
    label_sources,
)
from prefill_router_gateway.learning.paid_questions import (
    SIDE,
    BudgetEntry,
    LearningBudget,
    PaidQuestion,
    ask,
    side_question,
)
from prefill_router_gateway.learning.side_plan import LabellingSettings, SidePlan, chance
from prefill_router_gateway.learning.verifiers import Verifiers
from prefill_router_gateway.receipts import (
    AnswerLabel,
    Feedback,
    PersonTurn,
    RepeatedRequest,
    SampledRequest,
    SideAnswer,
    SideQuestions,
    latest_feedback,
    latest_scores,
    read_learning,
    read_receipts,
    turns_by_request,
    write_learning,
)

_AT_ONCE = 200
_WAVE = 200
_ANCHORS_PART = 0.2
DueAnchors = Callable[[Collection[str], Collection[tuple[str, str]]], Sequence[AnchorQuestion]]
"""Returns the anchors to ask: of requests that can be asked, given what was asked before."""


@final
@dataclass(frozen=True, kw_only=True)
class LabellingRound:
    """What one round did.

    Attributes:
        requests: Sampled requests that were drawn for.
        answers: Side questions by how they ended: `answered`, or the reason.
        labels: Judgments by how they ended.
        verified: Labels that needed no judge.
        spent: US dollars of this round.
        sources: How good each source of labels is.
        notes: What was left out, and why.
    """

    requests: int
    answers: Mapping[str, int]
    labels: Mapping[str, int]
    verified: int
    spent: float
    sources: Mapping[str, LabelSource] = field(hash=False)
    notes: tuple[str, ...] = ()

    @property
    def errors(self) -> dict[str, float]:
        """The estimated error of each source."""
        return {name: source.error for name, source in self.sources.items()}


@final
class Labelling:
    """One learner's labelling of a database of receipts.

    Args:
        url: The database, as for `open_store`.
        store: The same, open to write.
        pool: The targets, with their endpoints.
        judges: The judges.
        verifiers: The verifiers.
        budget: Pays for answers and judges.
        settings: How labels are made.
        clock: Returns the time in seconds since 1970.
    """

    def __init__(
        self,
        url: str,
        store: Database,
        pool: Pool,
        judges: AnswerJudges,
        *,
        verifiers: Verifiers,
        budget: LearningBudget,
        settings: LabellingSettings | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._url, self._store, self._budget = url, store, budget
        self._pool, self._judges, self._verifiers = pool.at_first(), judges, verifiers
        self._settings, self._clock = settings or LabellingSettings(), clock
        self._plan = SidePlan(self._pool, judges, self._settings)

    def run_round(
        self, *, share: float, progress: Progress, anchors: DueAnchors | None = None
    ) -> LabellingRound:
        """Ask and grade what isn't yet.

        Args:
            share: Of what the budget has left, how much may be spent now.
            progress: Shows the progress.
            anchors: Tells which anchors to ask first, for at most a fifth of that.
        """
        before, limit = self._budget.spending(), self._budget.available * share
        self._close_interrupted()
        requests = self._read_requests()
        routed = self._read_receipts(requests)
        askable = {name for name in routed if not requests[name].sample.is_turn}
        requests = {name: request for name, request in requests.items() if name in routed}
        answers, labels, count, verified = Counter[str](), Counter[str](), 0, 0
        if anchors is not None:
            part = limit * _ANCHORS_PART
            answers += self._ask_anchors(anchors, requests, askable, part, progress)
        for wave, part in self._split_waves(requests):
            left = limit - self._spent_since(before)
            count += self._draw_answers(wave, routed, left * part)
            answers += self._ask_targets(requests, routed, left, progress)
            left = limit - self._spent_since(before)
            checks, ends = self._grade_answers(requests, routed, left, progress)
            labels, verified = labels + ends, verified + checks
            self._plan.correct(self._spent_since(before))
        return LabellingRound(
            requests=count,
            answers=answers,
            labels=labels,
            verified=verified,
            spent=self._spent_since(before),
            sources=self.sources(),
            notes=tuple(self._list_notes()),
        )

    def _list_notes(self) -> Iterator[str]:
        if unpriced := ", ".join(target.name for target in self._pool if not target.has_price):
            yield f"{unpriced} can't be asked within a budget; give prices in the pool file"
        if relatives := ", ".join(self._judges.relatives(self._pool)):
            yield (
                f"answers of {relatives} are judged by a model of their family, which may favour "
                "them; list one of another family in the judges' pool file"
            )

    def sources(self) -> dict[str, LabelSource]:
        """How good each source of labels is, of all labels so far."""
        labels = list(read_learning(self._url, AnswerLabel))
        graded = sorted({label.id for label in labels})
        routed = {
            name: receipt.outcome.target for name, receipt in receipts_of(self._url, graded).items()
        }
        ids = {decision: name for name in graded for decision in self._decisions_of(name)}
        feedback = defaultdict[tuple[str, str], list[Feedback]](list)
        for part in _split_ids(list(ids)):
            for name, scores in latest_feedback(self._url, part).items():
                feedback[ids[name], routed.get(ids[name]) or ""] += scores
        latest = {cell: latest_scores(scores) for cell, scores in feedback.items()}
        return label_sources(labels, latest)

    def _decisions_of(self, name: str) -> Sequence[str]:
        """The decisions whose feedback is about a sampled request: those of its turn."""
        return self._turns[name].ids if name in self._turns else (name,)

    def _spent_since(self, before: float) -> float:
        return max(0.0, self._budget.spending() - before)

    def _close_interrupted(self) -> None:
        """Record side questions whose outcome isn't known, so that they aren't asked again."""
        planned = {plan.id: plan for plan in read_learning(self._url, SideQuestions)}
        for name, target, dollars in self._budget.interrupted_calls(SIDE):
            chances = planned[name].propensity if name in planned else {}
            answer = SideAnswer(
                id=name,
                target=target,
                at=self._clock(),
                propensity=chances.get(target, 0.0),
                failure="interrupted",
                cost=dollars,
            )
            entry = BudgetEntry(id=name, target=target, purpose=SIDE)
            self._budget.settle(entry, dollars, dollars, [answer])

    def _read_requests(self) -> dict[str, RepeatedRequest]:
        """The sampled requests; of an agent's turn there is no other answer to make a pair with."""
        has_turns = self._judges.form != "pairs"
        samples = read_learning(self._url, SampledRequest)
        usable = (sample for sample in samples if sample.body and (has_turns or not sample.is_turn))
        return {
            request.sample.id: request
            for request in map(RepeatedRequest, usable)
            if _is_readable(request)
        }

    def _read_receipts(self, requests: Mapping[str, RepeatedRequest]) -> dict[str, Receipt]:
        """The receipts of requests that a target of the pool answered, all of their turn."""
        return {
            name: receipt
            for name, receipt in receipts_of(self._url, list(requests)).items()
            if receipt.outcome.target in self._pool.names and self._is_whole(requests[name].sample)
        }

    @cached_property
    def _turns(self) -> Mapping[str, PersonTurn]:
        """The turns of requests that don't stand alone."""
        return turns_by_request(self._url)

    def _is_whole(self, sample: SampledRequest) -> bool:
        """Whether a sample stands alone, or is the end of a turn that one target answered."""
        turn = self._turns.get(sample.id) if sample.is_turn else None
        return turn is None or (turn.target is not None and turn.ids[-1] == sample.id)

    def _split_waves(
        self, requests: Mapping[str, RepeatedRequest]
    ) -> Iterator[tuple[list[RepeatedRequest], float]]:
        """New requests in waves, each with its share of those left; or one of none.

        The cost of a wave predicts that of the next ones, so all of the budget is used.
        """
        planned = {plan.id for plan in read_learning(self._url, SideQuestions)}
        new = [request for name, request in requests.items() if name not in planned]
        for start in range(0, len(new) or 1, _WAVE):
            wave = new[start : start + _WAVE]
            yield wave, len(wave) / max(1, len(new) - start)

    def _draw_answers(
        self, wave: Sequence[RepeatedRequest], routed: Mapping[str, Receipt], dollars: float
    ) -> int:
        """Draw what is asked of new requests, and write it."""
        new = [(request, routed[request.sample.id]) for request in wave]
        rows = self._plan.draw(new, dollars, at=self._clock())
        write_learning(self._store, rows)
        return len(rows)

    def _ask_targets(
        self,
        requests: Mapping[str, RepeatedRequest],
        routed: Mapping[str, Receipt],
        limit: float,
        progress: Progress,
    ) -> Counter[str]:
        labelled = {(label.id, label.target) for label in read_learning(self._url, AnswerLabel)}
        attempted, questions, judging = self._read_attempts() | labelled, [], 0.0
        for request, target, propensity in self._read_drawn(requests):
            name = request.sample.id
            if (name, target.name) not in attempted:
                judging += self._judges.price(request, target, request.sample.answer)
                if target.name != routed[name].outcome.target:
                    questions.append(side_question(request, target, propensity, clock=self._clock))
        with progress.task("asking on the side", total=len(questions)) as advance:
            # answers that can't be judged teach nothing
            left = max(0.0, limit - judging * self._plan.ratio)
            return ask(questions, self._pool, self._budget, limit=left, advance=advance)

    def _ask_anchors(
        self,
        due: DueAnchors,
        requests: Mapping[str, RepeatedRequest],
        askable: Collection[str],
        limit: float,
        progress: Progress,
    ) -> Counter[str]:
        questions = [
            side_question(
                requests[anchor.id],
                self._pool[anchor.target],
                0.0,
                answer_name=anchor.name,
                clock=self._clock,
            )
            for anchor in due(askable, self._read_attempts())
        ]
        with progress.task("asking anchors again", total=len(questions)) as advance:
            return ask(questions, self._pool, self._budget, limit=limit, advance=advance)

    def _read_attempts(self) -> set[tuple[str, str]]:
        """The requests and names of the answers that were asked for."""
        answered = {(answer.id, answer.target) for answer in read_learning(self._url, SideAnswer)}
        return answered | self._budget.paid_cells(SIDE)

    def _grade_answers(
        self,
        requests: Mapping[str, RepeatedRequest],
        routed: Mapping[str, Receipt],
        limit: float,
        progress: Progress,
    ) -> tuple[int, Counter[str]]:
        labels = read_learning(self._url, AnswerLabel)
        labelled = {(label.id, label.target) for label in labels}
        verified, questions = self._verify_answers(requests, routed, labelled)
        write_learning(self._store, verified)
        questions = self._drop_paid(questions)
        with progress.task("judging answers", total=len(questions)) as advance:
            ends = ask(questions, self._judges.pool, self._budget, limit=limit, advance=advance)
        if self._judges.form == "pairs":
            self._write_client_labels(routed, labelled)
        return len(verified), ends

    def _verify_answers(
        self,
        requests: Mapping[str, RepeatedRequest],
        routed: Mapping[str, Receipt],
        labelled: Collection[tuple[str, str]],
    ) -> tuple[list[AnswerLabel], list[PaidQuestion]]:
        """The labels that verifiers give, and what the judges are asked about the other answers."""
        errors = {name: source.error for name, source in self.sources().items()}
        verified: list[AnswerLabel] = []
        questions: list[PaidQuestion] = []
        for judged in self._read_answers(requests, routed):
            name, target = judged.request.sample.id, judged.target.name
            verification = None
            if (name, target) not in labelled:
                verification = self._verifiers.verify(judged.request, judged.answer)
            if verification is not None:
                verified.append(
                    AnswerLabel(
                        id=name,
                        target=target,
                        source=f"verifier:{verification.name}",
                        at=self._clock(),
                        score=verification.score,
                    )
                )
            else:
                questions += self._list_judgments(
                    judged, errors, is_labelled=(name, target) in labelled
                )
        return verified, questions

    def _drop_paid(self, questions: Sequence[PaidQuestion]) -> list[PaidQuestion]:
        """The questions that weren't paid in an earlier round."""
        purposes = {question.entry.purpose for question in questions}
        paid = {purpose: self._budget.paid_cells(purpose) for purpose in purposes}
        return [
            question
            for question in questions
            if (question.entry.id, question.entry.target) not in paid[question.entry.purpose]
        ]

    def _list_judgments(
        self, judged: JudgedAnswer, errors: Mapping[str, float], *, is_labelled: bool
    ) -> list[PaidQuestion]:
        """The questions about an answer that may be lacking, and their repetition."""
        if self._judges.form == "pairs":  # the client's own answer is in every pair
            return [] if judged.reference is None else self._judges.questions(judged, errors)
        seed, name = self._settings.seed, judged.request.sample.id
        questions = [] if is_labelled else self._judges.questions(judged, errors)
        if chance(seed, name, judged.target.name + AGAIN) < self._settings.again:
            questions += self._judges.questions(judged, errors, again=True)
        return questions

    def _write_client_labels(
        self, routed: Mapping[str, Receipt], labelled: set[tuple[str, str]]
    ) -> None:
        targets = {name: str(receipt.outcome.target) for name, receipt in routed.items()}
        labels = read_learning(self._url, AnswerLabel)
        shares = label_client_answers(labels, targets, at=self._clock())
        write_learning(
            self._store, [label for label in shares if (label.id, label.target) not in labelled]
        )

    def _read_answers(
        self, requests: Mapping[str, RepeatedRequest], routed: Mapping[str, Receipt]
    ) -> list[JudgedAnswer]:
        """The answers that are to be labelled, as far as they are there; anchors' last."""
        side = {
            (answer.id, answer.target): answer for answer in read_learning(self._url, SideAnswer)
        }
        answers = []
        for request, target, _ in self._read_drawn(requests):
            name, own = request.sample.id, request.sample.answer
            judged = partial(JudgedAnswer, request=request, target=target)
            if target.name == routed[name].outcome.target:
                answers.append(judged(answer=own))
            elif (answer := side.get((name, target.name))) and answer.answer is not None:
                answers.append(judged(answer=answer.answer, reference=own))
        for (name, answer_name), answer in side.items():
            question = AnchorQuestion.of(name, answer_name)
            is_askable = name in requests and question.target in self._pool.names
            if question.number > 1 and is_askable and answer.answer is not None:
                target = self._pool[question.target]
                named_target = replace(target, name=answer_name, model=target.model or target.name)
                answers.append(
                    JudgedAnswer(request=requests[name], target=named_target, answer=answer.answer)
                )
        return answers

    def _read_drawn(
        self, requests: Mapping[str, RepeatedRequest]
    ) -> Iterator[tuple[RepeatedRequest, Target, float]]:
        """The answers that were drawn to be labelled, of targets in the pool, and their chances."""
        for plan in read_learning(self._url, SideQuestions):
            if (request := requests.get(plan.id)) is not None:
                for name in plan.drawn:
                    if name in self._pool.names:
                        yield request, self._pool[name], plan.propensity[name]


def source_words(labelling: LabellingRound) -> Iterator[str]:
    """What is known of each source of labels, in words."""
    for name, source in labelling.sources.items():
        words = f"{name}: {source.labels:,} labels, estimated error {source.error:.1%}"
        if source.repeated:
            words += f", agrees with itself on {source.agreement:.0%} of {source.repeated:,}"
        if source.first == source.first:
            words += f", prefers the answer shown first in {source.first:.0%}"
        if source.by_users:
            words += f", agrees with users on {source.user_agreement:.0%} of {source.by_users:,}"
        if source.compared:
            words += (
                f", contradicts better ones on {source.contradicted:.0%} of {source.compared:,}"
            )
        yield words


def receipts_of(url: str, ids: Sequence[str]) -> dict[str, Receipt]:
    """The receipts of these decisions; raises as `read_receipts`."""
    return {
        receipt.choice.id: receipt
        for part in _split_ids(ids)
        for receipt in read_receipts(url, ids=part)
    }


def _is_readable(request: RepeatedRequest) -> bool:
    try:
        return bool(request.prompt)
    except (PrefillRouterError, KeyError, TypeError):
        return False


def _split_ids(ids: Sequence[str]) -> list[Sequence[str]]:
    return [ids[i : i + _AT_ONCE] for i in range(0, len(ids), _AT_ONCE)]
