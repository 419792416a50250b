"""Generation: the interface of language models, the job of one answer, and the worker.

One thread generates: it takes the waiting jobs as one batch, and delivers each token. A scripted
model has no weights: it answers from a script.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, final, runtime_checkable

from prefill_router.errors import ConfigError

FinishReason = Literal["stop", "length"]
Message = tuple[str, str]
"""The role and the text of one turn."""


@final
@dataclass(frozen=True)
class Prompt:
    """The input of a model.

    Attributes:
        text: The last turn of a conversation, or the text to continue.
        tokens: Number of input tokens, those of the chat template included.
        ids: The token ids, for models that have a vocabulary.
    """

    text: str
    tokens: int
    ids: tuple[int, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: The temperature; 0 takes the most probable token.
        top_p: Nucleus sampling: only the most probable tokens that together reach this share.
        seed: The same seed gives the same answer, whatever else is in the batch.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@final
@dataclass(eq=False, kw_only=True)
class Job:
    """The generation of one answer, shared by the waiting request and the worker.

    Attributes:
        prompt: The input.
        max_tokens: Most tokens to generate.
        stop: Texts before which the answer ends.
        sampling: How tokens are chosen.
        deliver: Called in the event loop with each new piece of text and whether it is the last.
        generated: Tokens generated so far, the end token included.
        finish: The reason why it ended; None while it runs.
    """

    prompt: Prompt
    max_tokens: int
    stop: tuple[str, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    deliver: Callable[[str, bool], None] = lambda _piece, _last: None
    generated: int = 0
    finish: FinishReason | None = None
    _pending: str = ""
    _left: bool = False

    @property
    def over(self) -> bool:
        """Whether no more tokens are needed: it ended, or nobody waits for it any more."""
        return self.finish is not None or self._left

    def leave(self) -> None:
        """Abandon this answer; its row of the batch is freed at the next step."""
        self._left = True

    def add(self, piece: str, *, ended: bool) -> tuple[str, bool]:
        """Count a token; returns the text to send now, and whether the answer is complete.

        Args:
            piece: The token's text; the end token has none.
            ended: Whether the model has generated its end token.
        """
        if self.over:
            return "", True
        self.generated += 1
        text = self._pending + piece
        places = [at for at in map(text.find, self.stop) if at >= 0]
        if places:
            text, ended = text[: min(places)], True
        if ended:
            self.finish = "stop"
        elif self.generated >= self.max_tokens:
            self.finish = "length"
        keep = 0 if self.over else _count_stop_prefix(text, self.stop)
        self._pending = text[len(text) - keep :]
        return text[: len(text) - keep], self.over


@runtime_checkable
class Model(Protocol):
    """A language model that can be served.

    The first three are called in the event loop and must be quick; `generate` runs in the worker.
    """

    @property
    def name(self) -> str:
        """The name that requests ask for."""

    @property
    def context(self) -> int:
        """The context length in tokens, for prompt and answer together."""

    def read_chat(self, messages: Sequence[Message]) -> Prompt:
        """The prompt of a conversation, with the template that asks for an answer."""

    def read_text(self, text: str) -> Prompt:
        """The prompt of a bare text to continue."""

    def generate(self, jobs: Sequence[Job]) -> Iterator[list[tuple[Job, str, bool]]]:
        """Generate for several jobs as one batch.

        Each step yields one token for each job that isn't `over`: its text, and whether the model
        ends there. Jobs that are over aren't part of later steps.
        """


def _count_stop_prefix(text: str, stops: tuple[str, ...]) -> int:
    """Length of the longest suffix of a text that is a prefix of a stop text."""
    longest = max((len(stop) for stop in stops), default=0)
    for length in range(min(longest - 1, len(text)), 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0


Delivery = list[tuple[Job, str, bool]]
"""For each job of a step: the text to send now, and whether it is the last."""


@final
class Worker:
    """Generates for all models in one thread, one batch of one model at a time.

    The next model is the one with the oldest waiting request; its batch has all requests that wait
    for it.

    Args:
        models: The models, with distinct names.
        max_batch: Most answers in one batch.
        deliver: Called in the thread with the tokens of each step.
        ended: Called in the thread when it ends, normally or by an error of a model.
    """

    def __init__(
        self,
        models: Iterable[Model],
        *,
        max_batch: int,
        deliver: Callable[[Delivery], None],
        ended: Callable[[], None],
    ) -> None:
        self._models = {model.name: model for model in models}
        self._max_batch = max_batch
        self._deliver = deliver
        self._ended = ended
        self._waiting: dict[str, deque[tuple[float, Job]]] = {n: deque() for n in self._models}
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="minipool-worker", daemon=True)
        self.busy_seconds = 0.0
        self.tokens = 0
        self.batches = 0

    @property
    def alive(self) -> bool:
        """Whether the thread runs; an error of a model ends it."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Number of answers that are in no batch yet."""
        with self._wake:
            return sum(map(len, self._waiting.values()))

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its present step."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def submit(self, model: str, job: Job) -> None:
        """Put a job in the queue of a model."""
        with self._wake:
            self._waiting[model].append((time.monotonic(), job))
            self._wake.notify()

    def _run(self) -> None:
        try:
            while (batch := self._take()) is not None:
                started = time.perf_counter()
                self._generate(*batch)
                self.batches += 1
                self.busy_seconds += time.perf_counter() - started
        finally:
            self._ended()

    def _generate(self, model: Model, jobs: list[Job]) -> None:
        for step in model.generate(jobs):
            self.tokens += len(step)
            self._deliver([(job, *job.add(text, ended=ended)) for job, text, ended in step])
            if self._stopping:
                return

    def _take(self) -> tuple[Model, list[Job]] | None:
        """The next batch, after waiting for one; None when the thread has to end."""
        with self._wake:
            while not self._stopping:
                waiting = [name for name, jobs in self._waiting.items() if jobs]
                if waiting:
                    name = min(waiting, key=lambda name: self._waiting[name][0][0])
                    count = min(self._max_batch, len(self._waiting[name]))
                    queued = [self._waiting[name].popleft()[1] for _ in range(count)]
                    jobs = [job for job in queued if not job.over]
                    if jobs:
                        return self._models[name], jobs
                else:
                    self._wake.wait()
            return None


_TEMPLATE_TOKENS = 3  # as a chat template would add to each turn


@final
class ScriptedModel:
    """Answers from a script; by default a token has four characters.

    Args:
        name: The name that requests ask for.
        answers: The answers by the text of the last turn, or a function from text to answer.
        otherwise: The answer where the mapping has none.
        characters: Characters per token.
        context: The context length in tokens, for prompt and answer together.
    """

    def __init__(
        self,
        name: str,
        answers: Mapping[str, str] | Callable[[str], str],
        *,
        otherwise: str = "I do not know.",
        characters: int = 4,
        context: int = 1_000_000,
    ) -> None:
        if characters < 1:
            raise ConfigError(f"characters per token are {characters}; use at least 1")
        self.name = name
        self.context = context
        self._answers = answers
        self._otherwise = otherwise
        self._characters = characters

    def count(self, text: str) -> int:
        """Number of tokens of a text."""
        return -(-len(text) // self._characters)

    def read_chat(self, messages: Sequence[Message]) -> Prompt:
        """The prompt of a conversation; every turn has three tokens more than its text."""
        tokens = sum(self.count(text) + _TEMPLATE_TOKENS for _, text in messages)
        return Prompt(messages[-1][1], tokens)

    def read_text(self, text: str) -> Prompt:
        """The prompt of a bare text."""
        return Prompt(text, self.count(text))

    def answer_to(self, text: str) -> str:
        """The answer to a text."""
        if callable(self._answers):
            return self._answers(text)
        return self._answers.get(text, self._otherwise)

    def generate(self, jobs: Sequence[Job]) -> Iterator[list[tuple[Job, str, bool]]]:
        """Yield one token of each answer at a time, with whether it is the last."""
        texts = {job: self.answer_to(job.prompt.text) for job in jobs}
        at = 0
        while open_jobs := [job for job in texts if not job.over]:
            end = at + self._characters
            yield [(job, texts[job][at:end], end >= len(texts[job])) for job in open_jobs]
            at = end
