"""Runs `prefill-router` with workers that encode small chunks, as many as a file allows.

Run as a program, with the command's words; the last folder is the store.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

from packages.router.tests.engines.encoding_job import GatedSource
from prefill_router import cli, encoders

CHUNK_TOKENS = 128


class _Sources:
    """Makes sources that load the command's own encoder, and have it wait."""

    @staticmethod
    def of(*arguments: Any, **more: Any) -> GatedSource:
        store = Path(sys.argv[sys.argv.index("--out") + 1])
        return GatedSource(_OWN.of(*arguments, **more), store)


_OWN = encoders.EncoderSource

if __name__ == "__main__":
    encoders.plan_encoding = partial(encoders.plan_encoding, chunk_tokens=CHUNK_TOKENS)
    encoders.EncoderSource = _Sources  # type: ignore[assignment, misc]
    cli.main()
