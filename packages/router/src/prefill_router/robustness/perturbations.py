"""Prompts as somebody else would have written them: with typos, other words, options reordered.

Three kinds are made here by rules, each the same for the same prompt and seed:

- `typos`: a share of the longer words have one wrong, missing, doubled or swapped letter;
- `wording`: fixed replacements of everyday words and of phrases of questions. No model and no
  person rewords anything, so this says less than paraphrases would;
- `options`: the lettered options of a multiple-choice question in another order.

A fourth, `paraphrases`, is what the user brings.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np

from prefill_router.data import Prompt, Query, RoutingDataset, prompt_key
from prefill_router.errors import DataError

Kind = Literal["typos", "wording", "options", "paraphrases"]
Change = Callable[[str, np.random.Generator], str]
"""Changes a text; the same text where it can't."""
TYPO_RATE = 0.05
"""The share of a prompt's longer words that have a typo."""
_WORD = re.compile(r"(?<![\\\w])[^\W\d_]{4,}(?!\w)")
"""A word of four or more letters; `\\frac` and the like aren't words."""
_KEYS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_NEAR = {
    key: "".join(row[max(i - 1, 0) : i] + row[i + 1 : i + 2])
    for row in _KEYS
    for i, key in enumerate(row)
}
"""The letters beside each letter on a keyboard."""


def add_typos(text: str, random: np.random.Generator, *, rate: float = TYPO_RATE) -> str:
    """The text with a typo in a share of its words of four or more letters, at least in one."""
    words = list(_WORD.finditer(text))
    if not words:
        return text
    count = max(1, round(rate * len(words)))
    for place in sorted(random.choice(len(words), count, replace=False), reverse=True):
        start, end = words[place].span()
        text = text[:start] + _add_typo(words[place][0], random) + text[end:]
    return text


def _add_typo(word: str, random: np.random.Generator) -> str:
    """The word with one mistake behind its first letter."""
    i = int(random.integers(1, len(word) - 1))
    before, here, after, rest = word[:i], word[i], word[i + 1], word[i + 2 :]
    near = _NEAR.get(here, "")
    match random.integers(4):
        case 0 if here != after:
            return before + after + here + rest
        case 1 if near:
            return before + near[int(random.integers(len(near)))] + after + rest
        case 2:
            return before + after + rest
    return before + here + here + after + rest


_REWORDED: Mapping[str, str] = {
    "which of the following": "which one of these",
    "of the following": "of these",
    "the following": "these",
    "what is": "what's",
    "is not": "isn't",
    "are not": "aren't",
    "does not": "doesn't",
    "do not": "don't",
    "cannot": "can't",
    "how many": "what number of",
    "how much": "what amount of",
    "in order to": "to",
    "according to": "as stated by",
    "because of": "due to",
    "due to": "because of",
    "for example": "for instance",
    "approximately": "about",
    "however": "but",
    "therefore": "so",
    "calculate": "work out",
    "determine": "find out",
    "compute": "work out",
    "describe": "say in words",
    "explain": "make clear",
    "suppose": "assume",
    "assume": "suppose",
    "contains": "has in it",
    "contain": "have in them",
    "requires": "needs",
    "require": "need",
    "begins": "starts",
    "begin": "start",
    "large": "big",
    "select": "pick",
    "choose": "pick",
    "find": "give",
    "shows": "displays",
    "show": "display",
}
_PHRASE = re.compile(
    rf"\b({'|'.join(sorted(_REWORDED, key=len, reverse=True))})\b".replace(" ", r"\s+"),
    re.IGNORECASE,
)


def reword(text: str, random: np.random.Generator) -> str:
    """The text with every phrase of the table replaced; the same where it has none of them."""
    del random

    def other(match: re.Match[str]) -> str:
        new = _REWORDED[" ".join(match[0].lower().split())]
        return new[0].upper() + new[1:] if match[0][0].isupper() else new

    return _PHRASE.sub(other, text)


_OPTION = re.compile(r"^[ \t]*[(\[]?([A-Z])[.):\]]+[ \t]+(?=\S)", re.MULTILINE)
_REFERS = re.compile(r"(?i:\b(?:above|below|both|neither)\b)|\b[A-Z]\s*(?:,|and|or|&)\s*[A-Z]\b")
"""What refers to other options, which moving them would make wrong."""


def move_options(text: str, random: np.random.Generator) -> str:
    """The text with its options in another order under the same letters.

    Options are lines that begin with a letter, `A.`, `(A)` or `A)`, from A on; the last such list
    is taken. The text stays as it is where there is none, or where an option speaks of others.
    """
    marks: list[re.Match[str]] = []
    for match in _OPTION.finditer(text):
        if match[1] == "A":
            marks = [match]
        elif marks and ord(match[1]) == ord(marks[-1][1]) + 1:
            marks.append(match)
    if len(marks) < 2:
        return text
    last = re.compile(r"\n|\Z").search(text, marks[-1].end())
    stops = [mark.start() for mark in marks[1:]] + [last.start() if last else len(text)]
    spans = [(m.end(), len(text[:s].rstrip())) for m, s in zip(marks, stops, strict=True)]
    options = [text[start:end] for start, end in spans]
    if any(map(_REFERS.search, options)) or len(set(options)) == 1:
        return text
    order = random.permutation(len(options))
    while all(options[k] == options[i] for i, k in enumerate(order)):
        order = random.permutation(len(options))
    for (start, end), k in reversed(list(zip(spans, order, strict=True))):
        text = text[:start] + options[k] + text[end:]
    return text


CHANGES: Mapping[Kind, Change] = {
    "typos": add_typos,
    "wording": reword,
    "options": move_options,
}
"""The kinds that are made by rules."""


def perturb(
    queries: Sequence[Query], kind: Kind, *, seed: int = 0, typos: float = TYPO_RATE
) -> list[Query]:
    """The queries whose prompts a kind of perturbation changes, with these other prompts.

    In a chat the latest message of the user is changed.

    Args:
        queries: The queries as they were asked.
        kind: A key of `CHANGES`.
        seed: Random seed; a prompt is changed in the same way whatever the others are.
        typos: The share of the longer words that have a typo.
    """
    how: Change = partial(add_typos, rate=typos) if kind == "typos" else CHANGES[kind]
    results = []
    for query in queries:
        random = np.random.default_rng([seed, int(prompt_key(query.prompt)[:15], 16)])
        prompt = _change_prompt(query.prompt, how, random)
        if prompt != query.prompt:
            results.append(replace(query, prompt=prompt))
    return results


def _change_prompt(prompt: Prompt, how: Change, random: np.random.Generator) -> Prompt:
    if isinstance(prompt, str):
        return how(prompt, random)
    users = [i for i, message in enumerate(prompt) if message.role == "user"]
    place = users[-1] if users else len(prompt) - 1
    message = replace(prompt[place], content=how(prompt[place].content, random))
    return (*prompt[:place], message, *prompt[place + 1 :])


def pair_paraphrases(queries: Sequence[Query], paraphrases: Sequence[Query]) -> list[Query]:
    """The queries that have a paraphrase, with its prompt; matched by id.

    Raises:
        DataError: None of the queries has one.
    """
    prompts = {query.id: query.prompt for query in paraphrases}
    results = [
        replace(query, prompt=prompts[query.id])
        for query in queries
        if prompts.get(query.id, query.prompt) != query.prompt
    ]
    if not results:
        raise DataError(
            f"none of the {len(prompts):,} paraphrases has the id of one of the {len(queries):,} "
            "queries and another prompt; give the same ids"
        )
    return results


def sample_queries(dataset: RoutingDataset, count: int | None, *, seed: int = 0) -> RoutingDataset:
    """A random part of a dataset, in its order; all of it where it has no more queries."""
    if count is None or count >= len(dataset):
        return dataset
    rows = np.sort(np.random.default_rng(seed).choice(len(dataset), count, replace=False))
    return dataset.select([dataset.query_ids[row] for row in rows])
