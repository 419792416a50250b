"""The search on a device of torch; `neighbours` proves what it proposes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from numpy.typing import NDArray
from torch import Tensor

from prefill_router.accelerator import memory_errors, send

if TYPE_CHECKING:
    from prefill_router.neighbours.neighbours import NeighbourIndex

Vectors = Float32[NDArray[np.float32], "row dim"]
Positions = Int64[NDArray[np.int64], "query proposal"]
_DISTANCES_AT_ONCE = 1 << 28


@final
@dataclass(frozen=True, eq=False)
class SearchedRows:
    """The rows of an index on a device.

    Attributes:
        vectors: The rows.
        centred: The rows relative to the index's centre.
        norms: The squared norms of these.
    """

    vectors: Tensor
    centred: Tensor
    norms: Tensor

    @memory_errors()
    def propose(
        self, centred: Vectors, width: int
    ) -> tuple[Positions, Float64[NDArray[np.float64], " query"]]:
        """The rows that are nearest in single precision, and the greatest distance among them.

        Args:
            centred: The queries relative to the index's centre.
            width: The number of rows for each query.

        Returns:
            Positions, in any order, and squared distances.
        """
        rows = np.empty((len(centred), width), dtype=np.int64)
        last = np.empty(len(centred))
        step = max(1, _DISTANCES_AT_ONCE // len(self.centred))
        with _in_single_precision():
            for start in range(0, len(centred), step):
                some = slice(start, start + step)
                queries = send(centred[some], self.centred.device)
                squared = torch.mm(queries, self.centred.T).mul_(-2)
                squared += queries.square().sum(dim=1)[:, None]
                squared += self.norms
                nearest = squared.topk(width, dim=1, largest=False, sorted=False)
                rows[some] = nearest.indices.cpu().numpy()
                last[some] = nearest.values.max(dim=1).values.cpu().numpy()
        return rows, last

    @memory_errors()
    def compute_distances(
        self, queries: Vectors, proposed: Positions
    ) -> Float64[NDArray[np.float64], "query proposal"]:
        """Squared distances of each query to its rows, from the differences in double precision."""
        rows, positions = (send(array, self.vectors.device) for array in (queries, proposed))
        away = self.vectors[positions].double() - rows.double()[:, None]
        return away.square_().sum(dim=2).cpu().numpy()


_copies: "WeakKeyDictionary[NeighbourIndex, dict[torch.device, SearchedRows]]"
_copies = WeakKeyDictionary()


@memory_errors()
def copy_rows(index: "NeighbourIndex", device: torch.device) -> SearchedRows:
    """The rows of an index on a device, as long as the index is needed."""
    copies = _copies.setdefault(index, {})
    if device not in copies:
        arrays = index.vectors, index.centred, index.norms
        copies[device] = SearchedRows(*(send(array, device) for array in arrays))
    return copies[device]


@contextmanager
def _in_single_precision() -> Iterator[None]:
    """Let no product round its inputs meanwhile: the bound on rounding holds for float32 alone."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
