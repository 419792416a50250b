"""What the server asks of a language model, and one answer in the making."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, final, runtime_checkable

FinishReason = Literal["stop", "length"]
Message = tuple[str, str]
"""The role and the text of one turn."""


@final
@dataclass(frozen=True)
class Prompt:
    """What a model is given to read.

    Attributes:
        text: What was asked: the last turn of a conversation, or the text to go on from.
        tokens: Number of tokens that the model reads, those of its chat template included.
        ids: The tokens, for models that have a vocabulary.
    """

    text: str
    tokens: int
    ids: tuple[int, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: 0 takes the most probable token.
        top_p: Only the most probable tokens that together reach this probability.
        seed: The same seed gives the same answer, whatever else is answered beside it.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@final
@dataclass(eq=False, kw_only=True)
class Job:
    """One answer in the making, shared by the request that waits and the worker that generates.

    Attributes:
        prompt: What is read.
        max_tokens: At most so many tokens are generated.
        stop: The answer ends before the first of these texts.
        sampling: How tokens are chosen.
        deliver: Called in the event loop with each new piece of text and whether it is the last.
        generated: Tokens generated so far, the end token included.
        finish: Why it ended; None while it goes on.
    """

    prompt: Prompt
    max_tokens: int
    stop: tuple[str, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    deliver: Callable[[str, bool], None] = lambda _piece, _last: None
    generated: int = 0
    finish: FinishReason | None = None
    _held: str = ""
    _left: bool = False

    @property
    def over(self) -> bool:
        """Whether no more tokens are wanted: it ended, or nobody waits for it any longer."""
        return self.finish is not None or self._left

    def leave(self) -> None:
        """Nobody waits for this answer any longer; its row becomes free at the next step."""
        self._left = True

    def add(self, piece: str, *, ended: bool) -> tuple[str, bool]:
        """Count a token; returns the text to send now, and whether the answer is complete.

        Args:
            piece: The token's text; the end token has none.
            ended: Whether the model has said that it is done.
        """
        if self.over:
            return "", True
        self.generated += 1
        text = self._held + piece
        places = [at for at in map(text.find, self.stop) if at >= 0]
        if places:
            text, ended = text[: min(places)], True
        if ended:
            self.finish = "stop"
        elif self.generated >= self.max_tokens:
            self.finish = "length"
        keep = 0 if self.over else _begun(text, self.stop)
        self._held = text[len(text) - keep :]
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
        """Tokens that fit, those of the prompt and those of the answer together."""

    def read_chat(self, messages: Sequence[Message]) -> Prompt:
        """The prompt of a conversation, with the template that asks for an answer."""

    def read_text(self, text: str) -> Prompt:
        """The prompt of a bare text that is to be gone on with."""

    def generate(self, jobs: Sequence[Job]) -> Iterator[list[tuple[Job, str, bool]]]:
        """Generate for several jobs at once.

        Each step yields, for each job that isn't `over`, one token: its text, and whether the model
        ends there. Jobs that are over, for whatever reason, take no part in later steps.
        """


def _begun(text: str, stops: tuple[str, ...]) -> int:
    """Length of the longest end of a text that may be the beginning of a stop text."""
    longest = max((len(stop) for stop in stops), default=0)
    for length in range(min(longest - 1, len(text)), 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0
