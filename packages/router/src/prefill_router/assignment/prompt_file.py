"""Prompts to assign: a table, lines of a provider's batch, or the folder of a dataset.

A record of a table (JSON Lines, CSV, Parquet) has `prompt`, a text, or `messages`, a list of {role,
content}. A line of a batch is OpenAI's `{custom_id, url, body}` or Anthropic's `{custom_id,
params}`. Of these the text is read that a gateway would read (`importers.scored_text`), and the
rest of the request is kept. Ids are `id`, `query_id` or `custom_id`, or made from the position:
`prompt-1` is the first. The prompts are read in blocks, once to predict and once to write.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, final

from prefill_router.data import BLOCK_ROWS, Prompt, Query, QueryFile, prompt_key
from prefill_router.errors import DataError, FormatError
from prefill_router.importers import (
    DatasetBuilder,
    Record,
    cell_prompt,
    columns_of,
    identifier,
    records,
    scored_text,
    show_cell,
)

Wire = Literal["chat", "messages"]
"""The protocol of a batch's requests: OpenAI's `body`, or Anthropic's `params`."""
_IDS = ("custom_id", "id", "query_id")
_REQUESTS: Mapping[str, Wire] = {"body": "chat", "params": "messages"}
CHATS = "/v1/chat/completions"


@final
@dataclass(frozen=True, slots=True)
class PromptRecord:
    """One prompt.

    Attributes:
        query: Its id, and what is read of it.
        request: The body of a batch's request; None where only the prompt was given.
        wire: The protocol of that request.
        url: Where OpenAI's batch sends it.
    """

    query: Query
    request: Mapping[str, Any] | None = None
    wire: Wire = "chat"
    url: str = CHATS


@final
class PromptFile:
    """A source of prompts, which can be read more than once.

    Args:
        path: A table, lines of a batch, or a dataset's folder.

    Raises:
        FormatError: There is no such file, or a folder isn't a dataset.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not self.path.exists():
            raise FormatError("no such file; give prompts in JSON Lines", file=self.path)
        self._folder = QueryFile.open(self.path) if self.path.is_dir() else None

    def blocks(self, rows: int = BLOCK_ROWS) -> Iterator[tuple[PromptRecord, ...]]:
        """The prompts in order, so many at a time.

        Raises:
            FormatError: A record has no prompt, or its id is given to an earlier one too.
        """
        prompts = self._check_ids()
        while block := tuple(islice(prompts, rows)):
            yield block

    def size(self) -> int:
        """About how many prompts there are: the lines of a text."""
        if self._folder is not None:
            return len(self._folder)
        with self.path.open("rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))

    def _check_ids(self) -> Iterator[PromptRecord]:
        ids: set[str] = set()
        for record in self._records():
            name = record.query.id
            if name in ids:
                raise FormatError(
                    f"two prompts have the id {show_cell(name)}; give each its own, or give none",
                    file=self.path,
                )
            ids.add(name)
            yield record

    def _records(self) -> Iterator[PromptRecord]:
        if self._folder is not None:
            for block in self._folder.blocks():
                yield from map(PromptRecord, block)
            return
        strict = DatasetBuilder(strict=True)
        wants = columns_of(self.path) if self.path.suffix.lower() == ".parquet" else ()
        rows = records(self.path, strict, needs=(), wants=wants)
        for number, (place, record) in enumerate(rows, 1):
            try:
                yield _record(record, number)
            except DataError as error:
                raise FormatError(*error.messages, file=place.file, line=place.line) from None


def _record(record: Record, number: int) -> PromptRecord:
    """A prompt and its id.

    Raises:
        DataError: It has neither a prompt nor a request.
    """
    name = prompt_id(record, number)
    chat, text = record.get("messages"), record.get("prompt")
    if chat is not None and not isinstance(chat, list):
        raise DataError("messages must be a list of {role, content}")
    if chat is not None or text is not None:
        return PromptRecord(Query(name, cell_prompt(text if chat is None else chat, "prompt")))
    for field, wire in _REQUESTS.items():
        request = record.get(field)
        if isinstance(request, dict):
            prompt = scored_text(request)
            if prompt is None:
                raise DataError(f"{field} has no text of a user, so there is nothing to route by")
            return PromptRecord(Query(name, prompt), request, wire, str(record.get("url") or CHATS))
    raise DataError(
        f"has no prompt: none of its fields ({len(record)}) is named prompt, messages, body or "
        "params; rename the field that has the prompt (in a CSV, in the first line)"
    )


def prompt_id(record: Record, number: int) -> str:
    """The id of a prompt: its own, or one made from its position, from 1 on.

    Raises:
        DataError: Its own is neither a text nor a whole number.
    """
    own = own_id(record)
    return f"prompt-{number}" if own is None else own


_NO_IDS = (bool, float, list, dict)


def own_id(record: Record) -> str | None:
    """The id that a record has; None without one.

    Raises:
        DataError: It is neither a text nor a whole number.
    """
    for name in _IDS:
        value = record.get(name)
        if value is None:
            continue
        if isinstance(value, _NO_IDS):
            raise DataError(f"the id is {show_cell(value)}; give a text or a whole number")
        return identifier(value, "id")
    return None


def prompt_digest(prompt: Prompt) -> str:
    """16 hexadecimal digits that equal prompts share and others don't."""
    return prompt_key(prompt)[:16]
