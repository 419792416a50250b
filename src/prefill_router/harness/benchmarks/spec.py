"""How tasks are named on the command line: `NAME`, `NAME=COPY`, either with options, or a file.

    mmlu_pro
    mmlu_pro=copies/mmlu_pro,shots=5
    livecodebench,release=release_v5,from=2024-08-01,revision=0fe84c3
    questions.jsonl

A benchmark's name comes first: a file of that name is meant by `./mmlu_pro`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from prefill_router.errors import ConfigError

REVISION: Final = "revision"
_LAST_OPTION = re.compile(r"(.*),([a-z]+)=([^,]*)", re.DOTALL)


@final
@dataclass(frozen=True, kw_only=True)
class Spec:
    """What was named.

    Attributes:
        benchmark: The benchmark; None where a file was named.
        path: The file, or the copy of the benchmark; None for the hub's.
        options: What was asked for, by name.
    """

    benchmark: str | None
    path: Path | None
    options: Mapping[str, str]


def parse_spec(text: str, options: Mapping[str, frozenset[str]]) -> Spec:
    """Take a specification apart.

    Args:
        text: The specification.
        options: The options of each benchmark, beside the revision.

    Raises:
        ConfigError: It is empty, or has an option that the benchmark lacks, or has one twice.
    """
    if not text.strip() or "\0" in text:
        raise ConfigError(f"no tasks were named; name a file, or one of {', '.join(options)}")
    name = re.split("[=,]", text, maxsplit=1)[0]
    if name not in options:
        return Spec(benchmark=None, path=Path(text), options={})
    known = options[name] | {REVISION}
    rest, found = _split(text.removeprefix(name), known)
    if rest and not rest.startswith("="):
        raise ConfigError(
            f"{rest[1:]!r} is no option of {name}; it has {', '.join(sorted(known))}, each written "
            "as NAME=VALUE after a comma"
        )
    if rest == "=":
        raise ConfigError(f"after {name}= comes a file or a folder; leave the = out for the hub's")
    return Spec(benchmark=name, path=Path(rest[1:]) if rest else None, options=found)


def _split(rest: str, known: frozenset[str]) -> tuple[str, dict[str, str]]:
    """The part before the options, which are taken from the end, and the options."""
    found: dict[str, str] = {}
    while (match := _LAST_OPTION.fullmatch(rest)) and match[2] in known:
        rest, name, value = match.groups()
        if name in found:
            raise ConfigError(f"{name} is given twice; keep one of them")
        if not value:
            raise ConfigError(f"{name} has no value; leave it out for the usual one")
        found[name] = value
    return rest, found
