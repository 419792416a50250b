"""NVIDIA LLM Router blueprint, version 3: a long CSV.

`question`, `model` (the target), `isCorrect`, `output_tokens` and, where published, `embedding_id`,
the number of the question within its file.
"""

from collections.abc import Sequence
from pathlib import Path

from prefill_router.importers import long, sources
from prefill_router.importers.base import Collector
from prefill_router.importers.columns import Columns

_USUAL = {
    **long.USUAL,
    "prompt": "question",
    "target": "model",
    "correct": "isCorrect",
    "query": "embedding_id",
}


def read(paths: Sequence[Path], into: Collector, columns: Columns) -> None:
    """Read the blueprint's tables; the numbers of questions are told apart by the file's name.

    Raises:
        FormatError: A source doesn't exist.
    """
    del columns
    for path in sources.expand(paths, (".csv",)):
        with into.file(path):
            long.read_table(path, into, Columns(), usual=_USUAL, id_prefix=f"{path.stem}-")
