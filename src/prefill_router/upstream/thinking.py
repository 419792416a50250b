"""Reasoning that comes inside the answer's text, between <think> and </think>.

So write models behind servers without a reasoning parser. Where the chat template has already
written the opening tag, only the closing one comes back; it is looked for only behind servers of
open models, since elsewhere an answer may well speak of the tag.
"""

from typing import NamedTuple

from prefill_router.targets import Dialect

_OPEN, _CLOSE = "<think>", "</think>"
_NEVER_OPENED: frozenset[Dialect] = frozenset(("openai", "anthropic"))


class Split(NamedTuple):
    """A text's two parts.

    Attributes:
        reasoning: What stood between the tags.
        answer: What came after them.
        start: Where the answer begins in the text, in characters.
    """

    reasoning: str
    answer: str
    start: int


def split_thinking(text: str, dialect: Dialect) -> Split | None:
    """Take the reasoning at the beginning of a text from its answer; None where there is none.

    A text that ends before its reasoning does has an empty answer. One whose opening tag was
    written by the template and that ends before the closing one can't be told from an answer.
    """
    opened = text.lstrip().startswith(_OPEN)
    if not opened and (dialect in _NEVER_OPENED or _CLOSE not in text):
        return None
    begin = text.index(_OPEN) + len(_OPEN) if opened else 0
    end = text.find(_CLOSE, begin)
    if end < 0:
        return Split(text[begin:].strip("\n"), "", len(text))
    rest = text[end + len(_CLOSE) :]
    answer = rest.lstrip()
    return Split(text[begin:end].strip("\n"), answer, len(text) - len(answer))
