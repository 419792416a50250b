"""A program that has imported everything, and runs commands in forks; see `forked_runs`.

Nothing of torch is run before a fork, since its threads don't survive one.
"""

from contextlib import suppress
from functools import partial

import torch
from transformers import AutoModel, AutoTokenizer, BertModel, PreTrainedTokenizerFast  # noqa: F401

from packages.router.tests.forked_runs import answer_runs
from packages.router.tests.preload import preload
from prefill_router import encoders
from prefill_router.reporting import evaluation_charts

preload(
    *(
        f"prefill_router.{name}"
        for name in ("cli", "encoders", "evaluation", "features", "fitting", "reporting", "router")
    )
)

with suppress(ModuleNotFoundError):
    from prefill_router_gateway.cli import learn

    learn._lower_priority = lambda **_: None  # other tests leave few idle moments

if __name__ == "__main__":
    torch.set_num_threads(1)
    # Several shards, so that there is something to interrupt.
    encoders.plan_encoding = partial(encoders.plan_encoding, chunk_tokens=400)
    evaluation_charts.name_targets = lambda *_: None  # the half of an evaluation's time
    answer_runs()
