"""A model without weights: it says what it was told to say."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import final

from prefill_router.errors import ConfigError
from prefill_router.minipool.server.model import Job, Message, Prompt

_TEMPLATE_TOKENS = 3  # what a chat template would add to each turn


@final
class ScriptedModel:
    """Answers from a script, a few characters a token. A text of n characters is ceil(n/4) tokens.

    Args:
        name: The name that requests ask for.
        answers: The answer to each text of a last turn; or a function from that text to the answer.
        otherwise: The answer where the mapping has none.
        characters: Characters in one token.
        context: Tokens that fit, prompt and answer together.
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
            raise ConfigError(f"tokens of {characters} characters; use at least 1")
        self.name = name
        self.context = context
        self._answers = answers
        self._otherwise = otherwise
        self._characters = characters

    def count(self, text: str) -> int:
        """Number of tokens of a text."""
        return -(-len(text) // self._characters)

    def read_chat(self, messages: Sequence[Message]) -> Prompt:
        """Every turn counts three tokens more than its text."""
        tokens = sum(self.count(text) + _TEMPLATE_TOKENS for _, text in messages)
        return Prompt(messages[-1][1], tokens)

    def read_text(self, text: str) -> Prompt:
        """A bare text counts its own tokens."""
        return Prompt(text, self.count(text))

    def answer_to(self, text: str) -> str:
        """What it says to a text."""
        if callable(self._answers):
            return self._answers(text)
        return self._answers.get(text, self._otherwise)

    def generate(self, jobs: Sequence[Job]) -> Iterator[list[tuple[Job, str, bool]]]:
        """One token of each answer at a time; the last one also says that it is the last."""
        texts = {job: self.answer_to(job.prompt.text) for job in jobs}
        at = 0
        while going := [job for job in texts if not job.over]:
            end = at + self._characters
            yield [(job, texts[job][at:end], end >= len(texts[job])) for job in going]
            at = end
