"""Splits reasoning from an answer where both came as one text.

Models behind servers without a reasoning parser write their reasoning in the answer's text, between
<think> and </think>. Where the chat template writes the opening tag, only the closing one is
returned. A lone closing tag counts only for servers of open models, since other answers may mention
the tag.
"""

from typing import NamedTuple

from prefill_router.targets import TRAITS, Dialect

_OPEN, _CLOSE = "<think>", "</think>"


class ThinkingSplit(NamedTuple):
    """A text split into reasoning and answer.

    Attributes:
        reasoning: The text between the tags.
        answer: The text after them.
        start: Where the answer begins in the text, in characters.
    """

    reasoning: str
    answer: str
    start: int


def split_thinking(text: str, dialect: Dialect) -> ThinkingSplit | None:
    """Split the reasoning at the beginning of a text from its answer; None where there is none.

    A text that ends within its reasoning has an empty answer. If the template wrote the opening
    tag and the text ends before the closing one, it can't be distinguished from an answer.
    """
    has_opening = text.lstrip().startswith(_OPEN)
    if not has_opening and (not TRAITS[dialect].opens_thinking or _CLOSE not in text):
        return None
    begin = text.index(_OPEN) + len(_OPEN) if has_opening else 0
    end = text.find(_CLOSE, begin)
    if end < 0:
        return ThinkingSplit(text[begin:].strip("\n"), "", len(text))
    rest = text[end + len(_CLOSE) :]
    answer = rest.lstrip()
    return ThinkingSplit(text[begin:end].strip("\n"), answer, len(text) - len(answer))
