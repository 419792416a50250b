"""Blocks compiled into fewer kernels, for networks that are run packed.

Between the matrix products a block has dozens of small operations: norms, rotations, residuals and
copies. On a GPU they take half of the time of a network of 0.6 billion parameters, and a quarter at
8 billion. `torch.compile` fuses them. It takes some 15 seconds the first time on a machine; its
results are kept in the package's cache folder. So blocks are compiled where the work is large
enough to save more than that. Where there is no compiler, blocks run as they are.
"""

import os
import subprocess
from collections.abc import Callable
from typing import Any, final

import torch
from torch import nn

from prefill_router.files import default_cache
from prefill_router.progress import Progress, SilentProgress

_SECONDS = 15
"""What the first compilation takes."""
_SAVED_SECONDS = 7e-11
"""What it saves of a token, for each block and each number of the hidden width. Measured on an H200
with Qwen3's shapes: 1.0e-10 at 0.6 billion parameters, 5.6e-11 at 8 billion."""
_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_FAILURES = (AssertionError, ImportError, OSError, RuntimeError, subprocess.SubprocessError)
"""What torch raises where it has no compiler, or can't compile a block."""


def least_tokens(blocks: int, hidden: int) -> int:
    """The number of tokens from which compiling takes less time than it saves.

    Args:
        blocks: The number of blocks that are run.
        hidden: The width of the residual stream.
    """
    return round(_SECONDS / (_SAVED_SECONDS * max(1, blocks) * hidden))


@final
class BlockCompiler:
    """Compiles a network's blocks once enough tokens are read or expected.

    Attributes:
        is_settled: Whether it has compiled the blocks, or tried to.
    """

    def __init__(
        self,
        blocks: nn.ModuleList,
        *,
        least_tokens: int,
        backend: str | Callable[..., Any] = "inductor",
    ) -> None:
        """Compile nothing yet.

        Args:
            blocks: The blocks, of which those that were dropped are `nn.Identity`.
            least_tokens: The number of tokens that are worth it.
            backend: The backend of `torch.compile`.
        """
        self.is_settled = False
        self._blocks = [block for block in blocks if not isinstance(block, nn.Identity)]
        self._least = least_tokens
        self._backend = backend
        self._tokens = 0

    def count(self, tokens: int) -> None:
        """Remember that so many tokens were read."""
        self._tokens += tokens

    def expect(
        self, tokens: int, trial: Callable[[], object], progress: Progress | None = None
    ) -> None:
        """Compile the blocks, if that pays for the tokens that were read and those that follow.

        Args:
            tokens: The number of tokens that follow.
            trial: Runs the blocks on a few tokens. Compilers begin then, and fail then.
            progress: Shows that the blocks are compiled, and how that ended.
        """
        if self.is_settled or self._tokens + tokens < self._least:
            return
        self.is_settled = True
        label = f"compiling the encoder, about {_SECONDS} s, once"
        with (progress or SilentProgress()).task(label, total=1) as advance:
            advance(1, note=self._compile(trial))

    def _compile(self, trial: Callable[[], object]) -> str:
        """Compile the blocks; a word on why they aren't, or nothing."""
        os.environ.setdefault(_CACHE, str(default_cache() / "inductor"))
        for block in self._blocks:
            # the call stays as it is, with the hooks that read the states, and is never compiled
            block.forward = torch.compile(block.forward, dynamic=True, backend=self._backend)
        try:
            trial()
        except _FAILURES as error:
            for block in self._blocks:
                del block.forward
            return f"left uncompiled: {type(error).__name__}"
        return ""
