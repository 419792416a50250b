"""A program that has imported everything, and runs commands in forks; see `forked_runs`.

Nothing of torch is run before a fork, since its threads don't survive one.
"""

from contextlib import suppress
from functools import partial

import torch
from transformers import AutoModel, AutoTokenizer, BertModel, PreTrainedTokenizerFast  # noqa: F401
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from packages.router.tests.forked_runs import answer_runs
from packages.router.tests.preload import preload
from prefill_router import encoders
from prefill_router.plugins import find_every_plugin
from prefill_router.reporting import evaluation_charts
from prefill_router.reporting.figures import new_figure, png

preload(
    *(
        f"prefill_router.{name}"
        for name in ("cli", "encoders", "evaluation", "features", "fitting", "reporting", "router")
    )
)

with suppress(ModuleNotFoundError):
    from prefill_router_gateway.cli import learn

    learn._lower_priority = lambda **_: None  # other tests keep the processor busy

if __name__ == "__main__":
    torch.set_num_threads(1)
    # Several shards, so that there is something to interrupt.
    encoders.plan_encoding = partial(encoders.plan_encoding, chunk_tokens=400)
    get_checkpoint_conversion_mapping("bert")
    find_every_plugin()
    # Drawing takes most of an evaluation's time, and no file is written meanwhile.
    evaluation_charts.draw = lambda _: new_figure(2, 1)
    png(new_figure(1, 1))  # finds the fonts
    answer_runs()
