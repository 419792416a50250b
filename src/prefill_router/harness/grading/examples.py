"""An example of each reason why answers lack labels, fit to be shown."""

from dataclasses import dataclass
from typing import Any, final

from prefill_router.data import Query, prompt_text

_SHOWN = 120
_QUOTED = 16
"""So many characters in a row that are the prompt's as well are taken for a quotation."""


@final
@dataclass(frozen=True, kw_only=True)
class Example:
    """An answer without a label.

    Attributes:
        query_id: To which question.
        target: Whose.
        detail: The error, shortened; empty where there is none, or where it quotes the prompt.
    """

    query_id: str
    target: str
    detail: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dict(vars(self))


def example_of(query: Query, target: str, detail: str) -> Example:
    """The example of an answer and its grade's detail."""
    line = " ".join(detail.split())
    if _quotes(line, " ".join(prompt_text(query.prompt).split())):
        line = ""
    shown = line if len(line) <= _SHOWN else f"{line[: _SHOWN - 2]} …"
    return Example(query_id=query.id, target=target, detail=shown)


def _quotes(line: str, prompt: str) -> bool:
    width = min(_QUOTED, len(prompt))
    if not width:
        return False
    return any(line[at : at + width] in prompt for at in range(len(line) - width + 1))
