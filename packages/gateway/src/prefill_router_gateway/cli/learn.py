"""`prefill-router learn`: labels sampled traffic within a budget, and fits versions."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from prefill_router.cli import options as opt
from prefill_router.cli.application import app, err, out
from prefill_router.cli.commands import UsageError, usage_errors
from prefill_router.errors import FormatError
from prefill_router.money import dollars
from prefill_router.options import AT_LEAST_TWO, NOT_NEGATIVE, SHARE
from prefill_router.progress import BarProgress
from prefill_router_gateway.cli.receipts import URL

if TYPE_CHECKING:
    from prefill_router_gateway.learning import CandidateStep, LearningRound

_NICE = 10
"""By how much the learner lowers its priority."""
_EACH_ROUND = 0.5
"""The share of what the budget has left that a round may spend, where more rounds follow."""
_SPAN = re.compile(r"(\d{1,5})([mhd])")
_SECONDS = {"m": 60.0, "h": 3600.0, "d": 86_400.0}


@app.command()
def learn(
    receipts: Annotated[str, typer.Option(help=URL)],
    pool: Annotated[Path, typer.Option(help="The pool.yaml of the targets, with prices.")],
    judge: Annotated[
        Path,
        typer.Option(
            help="A pool.yaml of the judges; a judge of another model family than the target "
            "is preferred."
        ),
    ],
    versions: Annotated[str, typer.Option(help="The folder or URL of the versions.")],
    per_day: Annotated[
        float | None,
        NOT_NEGATIVE,
        typer.Option(help="US dollars a day (UTC), for answers and judges."),
    ] = None,
    max_cost: Annotated[
        float | None, NOT_NEGATIVE, typer.Option(help="US dollars in all, for this database.")
    ] = None,
    encoder: Annotated[str, typer.Option(help="The encoder, as for encode.")] = "minilm",
    encoder_folder: opt.EncoderFolders = None,
    recipe: Annotated[
        Path | None,
        typer.Option(help="A recipe to fit; by default several are tried, and the best is taken."),
    ] = None,
    rubric: Annotated[
        Path | None, typer.Option(help="A text file that says what a right answer is.")
    ] = None,
    judge_by: Annotated[
        Literal["rubric", "pairs"],
        typer.Option(
            help="How judges grade: each answer alone, or in pairs with the client's "
            "answer, in both orders."
        ),
    ] = "rubric",
    judge_twice: Annotated[
        float, SHARE, typer.Option(help="The share of answers judged twice, to measure the judge.")
    ] = 0.1,
    pattern: Annotated[
        str | None, typer.Option(help="A regular expression that every right answer matches.")
    ] = None,
    grader_function: Annotated[
        str | None,
        typer.Option(
            help="Your verifier, FILE.py:NAME. It returns a score, or raises an "
            "error to leave the answer to the judge."
        ),
    ] = None,
    run_tests: Annotated[
        bool,
        typer.Option(
            "--run-tests",
            help="Take Python tests (assert, >>>) from requests, and run them in the sandbox "
            "on the programs in answers.",
        ),
    ] = False,
    least_labels: Annotated[
        int, AT_LEAST_TWO, typer.Option(help="Fit only targets with at least this many labels.")
    ] = 50,
    anchors_every: Annotated[
        int,
        NOT_NEGATIVE,
        typer.Option(help="Ask the anchors again after this many requests of a target; 0: never."),
    ] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", help="Repeat rounds until you interrupt it.")
    ] = False,
    every: Annotated[str, typer.Option(help="Time between rounds, such as 10m.")] = "10m",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each round as a line of JSON.")
    ] = False,
) -> None:
    """Label sampled requests within a budget, fit a router on them, and propose it.

    The gateway samples requests (`learning.share` of its settings). Other targets answer them too,
    and judges and verifiers grade the answers. Then a new version is fitted, and judged on the
    newest traffic. If it is worth it, it becomes the candidate. After an interruption the same
    command goes on from there. Nothing is paid twice.

    Example: prefill-router learn --receipts receipts.sqlite --pool pool.yaml --judge judge.yaml
    --per-day 1 --max-cost 5 --versions versions
    """
    from prefill_router.fitting import read_recipe
    from prefill_router.grading import RUBRIC, place_and_name
    from prefill_router.targets import read_pool
    from prefill_router_gateway.learning import (
        BudgetLimits,
        LabellingSettings,
        LearnerSettings,
        learn as learn_round,
    )

    with _end_on_terminate():
        pause = _parse_seconds(every)
        with usage_errors():
            limits = BudgetLimits(per_day=per_day, in_all=max_cost)
            if grader_function is not None:
                place_and_name(grader_function)
        settings = LearnerSettings(
            receipts=receipts,
            pool=read_pool(pool),
            judges=read_pool(judge),
            versions=versions,
            limits=limits,
            encoder=encoder,
            recipe=None if recipe is None else read_recipe(recipe),
            rubric=RUBRIC if rubric is None else _read_rubric(rubric),
            form=judge_by,
            pattern=pattern,
            function=grader_function,
            run_tests=run_tests,
            labelling=LabellingSettings(again=judge_twice),
            least=least_labels,
            anchors_every=anchors_every,
            sources=opt.sources(encoder_folder),
        )
        _lower_priority(idle=follow)
        share = _EACH_ROUND if follow else 1.0
        while True:
            learning_round = learn_round(settings, share=share, progress=BarProgress(console=err))
            _show(learning_round, as_json=as_json)
            if not follow:
                return
            time.sleep(pause)


def _read_rubric(place: Path) -> str:
    try:
        return place.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8 at byte {error.start}", file=place) from None


@contextmanager
def _end_on_terminate() -> Iterator[None]:
    """End by SIGTERM as by Ctrl-C."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Do what Ctrl-C does, which libraries may turn into errors of their own; see `main`."""
    del number
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)


def _lower_priority(*, idle: bool) -> None:
    """Yield the processor to others, with all threads, some of which libraries have started.

    Linux can run threads in moments in which nothing else would run (its idle class). A learner
    that goes on beside a gateway does, and who waits for a single round is not left without.
    """
    threads = Path("/proc/self/task").glob("*")  # on Linux, where a priority is that of one thread
    for thread in [int(path.name) for path in threads] or [0]:
        with suppress(ProcessLookupError):  # it has ended
            if idle and sys.platform == "linux":
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
            else:
                now = os.getpriority(os.PRIO_PROCESS, thread)
                os.setpriority(os.PRIO_PROCESS, thread, now + _NICE)


def _show(learning_round: "LearningRound", *, as_json: bool) -> None:
    from prefill_router_gateway.learning import change_words, source_words

    if as_json:
        out.file.write(json.dumps(learning_round.to_dict(), allow_nan=False) + "\n")
        out.file.flush()  # for who reads it as rounds go on
        return
    labelling = learning_round.labelling
    questions = ", ".join(f"{count:,} {end}" for end, count in labelling.answers.items()) or "none"
    judgments = ", ".join(f"{count:,} {end}" for end, count in labelling.labels.items()) or "none"
    out.say(
        f"side questions: {questions}; judgments: {judgments}; verified: {labelling.verified:,}"
    )
    out.say(f"spent: {dollars(labelling.spent)}")
    for words in (*source_words(labelling), *(f"note: {note}" for note in labelling.notes)):
        out.say(words)
    for change in learning_round.changes:
        out.say(f"change: {change_words(change)}")
    if learning_round.followed is not None:
        out.say(f"version {learning_round.followed} serves now, because of changes")
    if learning_round.step is not None:
        _show_step(learning_round.step)
    if learning_round.version is None:
        out.say(f"no new version: {learning_round.note}")
        return
    out.say(f"version {learning_round.version}: {learning_round.word}; {learning_round.verdict}")
    lacking = f"it isn't the candidate: {learning_round.note}"
    out.say("it is the candidate now" if learning_round.is_candidate else lacking)


def _show_step(step: "CandidateStep") -> None:
    decision = step.decision
    action = decision.action if step.is_taken else "no step"
    out.say(f"version {step.version} is tried: {action}, {decision.why}")
    if decision.labels_needed is not None and not step.is_taken:
        out.say(f"about {decision.labels_needed:,} more labels are needed at this rate")


def _parse_seconds(text: str) -> float:
    match = _SPAN.fullmatch(text)
    if match is None:
        raise UsageError(f"--every is {text!r}; it must be a time span such as 10m, 24h or 7d")
    return int(match[1]) * _SECONDS[match[2]]
