"""Earns labels of sampled requests: draws what to ask, asks, and grades, within the purse.

Each step writes what it did before the next begins, so after an interruption it goes on from there:
the draw with its probabilities, then each answer, then each label, both with their charges.
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
    label_sources,
    won_shares,
)
from prefill_router_gateway.learning.paid_questions import (
    SIDE,
    PaidQuestion,
    Purse,
    PurseEntry,
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
"""Tells which anchors to ask, of requests that can be asked, given what was asked."""


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
        purse: Pays for answers and judges.
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
        purse: Purse,
        settings: LabellingSettings | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._url, self._store, self._purse = url, store, purse
        self._pool, self._judges, self._verifiers = pool.at_first(), judges, verifiers
        self._settings, self._clock = settings or LabellingSettings(), clock
        self._plan = SidePlan(self._pool, judges, self._settings)

    def round(
        self, *, share: float, progress: Progress, anchors: DueAnchors | None = None
    ) -> LabellingRound:
        """Ask and grade what isn't yet.

        Args:
            share: Of what the purse has left, how much may be spent now.
            progress: Shows the progress.
            anchors: Tells which anchors to ask first, for at most a fifth of that.
        """
        before, limit = self._purse.spent(), self._purse.left * share
        self._close_interrupted()
        requests = self._requests()
        routed = self._routed(requests)
        askable = {name for name in routed if not requests[name].sample.is_turn}
        requests = {name: one for name, one in requests.items() if name in routed}
        answers, labels, drawn, verified = Counter[str](), Counter[str](), 0, 0
        if anchors is not None:
            part = limit * _ANCHORS_PART
            answers += self._ask_again(anchors, requests, askable, part, progress)
        for wave, part in self._waves(requests):
            left = limit - self._since(before)
            drawn += self._draw(wave, routed, left * part)
            answers += self._ask(requests, routed, left, progress)
            left = limit - self._since(before)
            found, ends = self._grade(requests, routed, left, progress)
            labels, verified = labels + ends, verified + found
            self._plan.correct(self._since(before))
        return LabellingRound(
            requests=drawn,
            answers=answers,
            labels=labels,
            verified=verified,
            spent=self._since(before),
            sources=self.sources(),
            notes=tuple(self._notes()),
        )

    def _notes(self) -> Iterator[str]:
        if unpriced := ", ".join(target.name for target in self._pool if not target.has_price):
            yield f"{unpriced} can't be asked within a purse; give prices in the pool file"
        if relatives := ", ".join(self._judges.relatives(self._pool)):
            yield (
                f"answers of {relatives} are judged by a model of their family, which may favour "
                "them; list one of another family in the judges' pool file"
            )

    def sources(self) -> dict[str, LabelSource]:
        """How good each source of labels is, of all labels so far."""
        labels = list(read_learning(self._url, AnswerLabel))
        given = sorted({label.id for label in labels})
        routed = {name: one.outcome.target for name, one in receipts_of(self._url, given).items()}
        ids = {i: name for name in given for i in self._of_turn(name)}
        feedback = defaultdict[tuple[str, str], list[Feedback]](list)
        for part in _parts(list(ids)):
            for name, scores in latest_feedback(self._url, part).items():
                feedback[ids[name], routed.get(ids[name]) or ""] += scores
        latest = {cell: latest_scores(scores) for cell, scores in feedback.items()}
        return label_sources(labels, latest)

    def _of_turn(self, name: str) -> Sequence[str]:
        """The decisions whose feedback is about a sampled request: those of its turn."""
        return self._turns[name].ids if name in self._turns else (name,)

    def _since(self, before: float) -> float:
        return max(0.0, self._purse.spent() - before)

    def _close_interrupted(self) -> None:
        """Record side questions whose outcome isn't known, so that they aren't asked again."""
        planned = {one.id: one for one in read_learning(self._url, SideQuestions)}
        for name, target, dollars in self._purse.interrupted(SIDE):
            chances = planned[name].propensity if name in planned else {}
            answer = SideAnswer(
                id=name,
                target=target,
                at=self._clock(),
                propensity=chances.get(target, 0.0),
                failure="interrupted",
                cost=dollars,
            )
            entry = PurseEntry(id=name, target=target, purpose=SIDE)
            self._purse.settle(entry, dollars, dollars, [answer])

    def _requests(self) -> dict[str, RepeatedRequest]:
        """The sampled requests; of an agent's turn there is no other answer to make a pair with."""
        has_turns = self._judges.form != "pairs"
        samples = read_learning(self._url, SampledRequest)
        wanted = (one for one in samples if one.body and (has_turns or not one.is_turn))
        return {one.sample.id: one for one in map(RepeatedRequest, wanted) if _is_readable(one)}

    def _routed(self, requests: Mapping[str, RepeatedRequest]) -> dict[str, Receipt]:
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

    def _waves(
        self, requests: Mapping[str, RepeatedRequest]
    ) -> Iterator[tuple[list[RepeatedRequest], float]]:
        """New requests in waves, each with its share of those left; or one of none.

        What a wave cost tells what the next ones will, so the purse is used, and for all alike.
        """
        known = {one.id for one in read_learning(self._url, SideQuestions)}
        new = [one for name, one in requests.items() if name not in known]
        for start in range(0, len(new) or 1, _WAVE):
            wave = new[start : start + _WAVE]
            yield wave, len(wave) / max(1, len(new) - start)

    def _draw(
        self, wave: Sequence[RepeatedRequest], routed: Mapping[str, Receipt], dollars: float
    ) -> int:
        """Draw what is asked of new requests, and write it."""
        new = [(one, routed[one.sample.id]) for one in wave]
        rows = self._plan.draw(new, dollars, at=self._clock())
        write_learning(self._store, rows)
        return len(rows)

    def _ask(
        self,
        requests: Mapping[str, RepeatedRequest],
        routed: Mapping[str, Receipt],
        limit: float,
        progress: Progress,
    ) -> Counter[str]:
        labelled = {(one.id, one.target) for one in read_learning(self._url, AnswerLabel)}
        done, questions, judging = self._asked() | labelled, [], 0.0
        for request, target, propensity in self._drawn(requests):
            name = request.sample.id
            if (name, target.name) not in done:
                judging += self._judges.price(request, target, request.sample.answer)
                if target.name != routed[name].outcome.target:
                    questions.append(side_question(request, target, propensity, clock=self._clock))
        with progress.task("asking on the side", total=len(questions)) as advance:
            # answers that can't be judged teach nothing
            left = max(0.0, limit - judging * self._plan.ratio)
            return ask(questions, self._pool, self._purse, limit=left, advance=advance)

    def _ask_again(
        self,
        due: DueAnchors,
        requests: Mapping[str, RepeatedRequest],
        askable: Collection[str],
        limit: float,
        progress: Progress,
    ) -> Counter[str]:
        questions = [
            side_question(
                requests[one.id], self._pool[one.target], 0.0, kept_as=one.name, clock=self._clock
            )
            for one in due(askable, self._asked())
        ]
        with progress.task("asking anchors again", total=len(questions)) as advance:
            return ask(questions, self._pool, self._purse, limit=limit, advance=advance)

    def _asked(self) -> set[tuple[str, str]]:
        """The requests and names of the answers that were asked for."""
        done = {(one.id, one.target) for one in read_learning(self._url, SideAnswer)}
        return done | self._purse.begun(SIDE)

    def _grade(
        self,
        requests: Mapping[str, RepeatedRequest],
        routed: Mapping[str, Receipt],
        limit: float,
        progress: Progress,
    ) -> tuple[int, Counter[str]]:
        labels = list(read_learning(self._url, AnswerLabel))
        known = {(label.id, label.target) for label in labels}
        errors = {name: source.error for name, source in self.sources().items()}
        verified: list[AnswerLabel] = []
        questions: list[PaidQuestion] = []
        for judged in self._answers(requests, routed):
            name, target = judged.request.sample.id, judged.target.name
            found = None
            if (name, target) not in known:
                found = self._verifiers.verify(judged.request, judged.answer)
            if found is not None:
                verified.append(
                    AnswerLabel(
                        id=name,
                        target=target,
                        source=f"verifier:{found.name}",
                        at=self._clock(),
                        score=found.score,
                    )
                )
            else:
                questions += self._judgments(judged, errors, is_known=(name, target) in known)
        write_learning(self._store, verified)
        entries = [one.entry for one in questions]
        begun = {purpose: self._purse.begun(purpose) for purpose in {e.purpose for e in entries}}
        questions = [
            one
            for one, entry in zip(questions, entries, strict=True)
            if (entry.id, entry.target) not in begun[entry.purpose]
        ]
        with progress.task("judging answers", total=len(questions)) as advance:
            ends = ask(questions, self._judges.pool, self._purse, limit=limit, advance=advance)
        if self._judges.form == "pairs":
            self._write_won_shares(routed, known)
        return len(verified), ends

    def _judgments(
        self, judged: JudgedAnswer, errors: Mapping[str, float], *, is_known: bool
    ) -> list[PaidQuestion]:
        """The questions about an answer that may be lacking, and their repetition."""
        if self._judges.form == "pairs":  # the client's own answer is in every pair
            return [] if judged.reference is None else self._judges.questions(judged, errors)
        seed, name = self._settings.seed, judged.request.sample.id
        found = [] if is_known else self._judges.questions(judged, errors)
        if chance(seed, name, judged.target.name + AGAIN) < self._settings.again:
            found += self._judges.questions(judged, errors, again=True)
        return found

    def _write_won_shares(self, routed: Mapping[str, Receipt], known: set[tuple[str, str]]) -> None:
        mine = {name: str(receipt.outcome.target) for name, receipt in routed.items()}
        given = read_learning(self._url, AnswerLabel)
        found = won_shares(given, mine, at=self._clock())
        write_learning(self._store, [one for one in found if (one.id, one.target) not in known])

    def _answers(
        self, requests: Mapping[str, RepeatedRequest], routed: Mapping[str, Receipt]
    ) -> list[JudgedAnswer]:
        """The answers that are to be labelled, as far as they are there; anchors' last."""
        side = {(one.id, one.target): one for one in read_learning(self._url, SideAnswer)}
        found = []
        for request, target, _ in self._drawn(requests):
            name, own = request.sample.id, request.sample.answer
            judged = partial(JudgedAnswer, request=request, target=target)
            if target.name == routed[name].outcome.target:
                found.append(judged(answer=own))
            elif (one := side.get((name, target.name))) and one.answer is not None:
                found.append(judged(answer=one.answer, reference=own))
        for (name, kept), one in side.items():
            again = AnchorQuestion.of(name, kept)
            is_known = name in requests and again.target in self._pool.names
            if again.number > 1 and is_known and one.answer is not None:
                target = self._pool[again.target]
                named = replace(target, name=kept, model=target.model or target.name)
                found.append(JudgedAnswer(request=requests[name], target=named, answer=one.answer))
        return found

    def _drawn(
        self, requests: Mapping[str, RepeatedRequest]
    ) -> Iterator[tuple[RepeatedRequest, Target, float]]:
        """The answers that were drawn to be labelled, of targets in the pool, and their chances."""
        for plan in read_learning(self._url, SideQuestions):
            if (request := requests.get(plan.id)) is not None:
                for name in plan.drawn:
                    if name in self._pool.names:
                        yield request, self._pool[name], plan.propensity[name]


def source_words(done: LabellingRound) -> Iterator[str]:
    """What is known of each source of labels, in words."""
    for name, source in done.sources.items():
        told = f"{name}: {source.labels:,} labels, estimated error {source.error:.1%}"
        if source.repeated:
            told += f", agrees with itself on {source.agreement:.0%} of {source.repeated:,}"
        if source.first == source.first:
            told += f", prefers the answer shown first in {source.first:.0%}"
        if source.by_users:
            told += f", agrees with users on {source.user_agreement:.0%} of {source.by_users:,}"
        if source.compared:
            told += f", contradicts better ones on {source.contradicted:.0%} of {source.compared:,}"
        yield told


def receipts_of(url: str, ids: Sequence[str]) -> dict[str, Receipt]:
    """The receipts of these decisions; raises as `read_receipts`."""
    return {
        receipt.choice.id: receipt
        for part in _parts(ids)
        for receipt in read_receipts(url, ids=part)
    }


def _is_readable(request: RepeatedRequest) -> bool:
    try:
        return bool(request.prompt)
    except (PrefillRouterError, KeyError, TypeError):
        return False


def _parts(ids: Sequence[str]) -> list[Sequence[str]]:
    return [ids[i : i + _AT_ONCE] for i in range(0, len(ids), _AT_ONCE)]
