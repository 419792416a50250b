"""The benchmarks by name: what each is, where its files are, and the function that reads them.

Nothing here loads a reader, so that the command's help knows them all at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final


@final
@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A benchmark whose tasks can be loaded.

    Attributes:
        summary: What it is, in one line.
        repository: Its dataset on the Hugging Face hub.
        reader: The module and the function that read a copy of its files, `hle:read`. The function
            checks the options at once, and reads a file when its tasks are taken.
        options: The options that it takes besides the revision.
    """

    summary: str
    repository: str
    reader: str
    options: frozenset[str] = frozenset()


BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    "mmlu_pro": Benchmark(
        summary="MMLU-Pro, multiple choice; shots=5 adds solved questions",
        repository="TIGER-Lab/MMLU-Pro",
        reader="mmlu_pro:read",
        options=frozenset({"shots"}),
    ),
    "hle": Benchmark(
        summary="Humanity's Last Exam, the questions without images",
        repository="cais/hle",
        reader="hle:read",
    ),
    "livecodebench": Benchmark(
        summary="LiveCodeBench, programming; release=release_v5, from=2024-08-01, to=2025-01-01",
        repository="livecodebench/code_generation_lite",
        reader="livecodebench:read",
        options=frozenset({"release", "from", "to"}),
    ),
}
"""Every benchmark by its name on the command line."""
