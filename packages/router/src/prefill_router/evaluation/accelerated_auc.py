"""AUCs of many resamples on a device of torch; the formula is that of `metrics.Ranking`."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from prefill_router.accelerator import memory_errors, send
from prefill_router.evaluation.bootstrap import Weights
from prefill_router.evaluation.metrics import Ranking

_Copy = tuple[Tensor, ...]
_copies: "WeakKeyDictionary[Ranking, dict[torch.device, _Copy]]" = WeakKeyDictionary()


@memory_errors()
def compute_aucs_on(
    device: torch.device, rankings: Sequence[Ranking], weights: Weights
) -> Float[NDArray[np.float64], "resample ranking"]:
    """The AUC of each ranking in each resample; NaN where one class has no weight."""
    counts = send(weights, device)
    aucs = [_compute_auc(_copy_ranking(ranking, device), counts) for ranking in rankings]
    return torch.stack(aucs, dim=1).cpu().numpy()


def _compute_auc(copy: _Copy, counts: Tensor) -> Tensor:
    right_rows, wrong_rows, below, upto, *shares = copy
    right, wrong = counts[:, right_rows], counts[:, wrong_rows]
    if shares:
        right, wrong = right * shares[0], wrong * shares[1]
    heap = torch.nn.functional.pad(wrong.cumsum(dim=1), (1, 0))
    wins = (right * (heap[:, below] + heap[:, upto])).sum(dim=1) / 2
    pairs = right.sum(dim=1) * heap[:, -1]
    return torch.where(pairs > 0, wins / pairs, torch.nan)


def _copy_ranking(ranking: Ranking, device: torch.device) -> _Copy:
    """The ranking's arrays on the device, as long as the ranking is needed."""
    copies = _copies.setdefault(ranking, {})
    if device not in copies:
        arrays = ranking.right, ranking.wrong, ranking.below, ranking.upto
        shares = ranking.share or ()
        copies[device] = tuple(send(array, device) for array in (*arrays, *shares))
    return copies[device]
