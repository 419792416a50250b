"""`prefill-router` with an encoder that needs no network; without arguments, `forked_runs`."""

import sys

from packages.router.tests.forked_runs import answer_runs
from packages.router.tests.preload import preload
from prefill_router.cli import main, options
from prefill_router.router import EncoderSources
from prefill_router.testing import FakeEncoder
from prefill_router_gateway.cli import learn

options.sources = lambda *_: EncoderSources(loaded=(FakeEncoder(),))

if __name__ == "__main__":
    if len(sys.argv) > 1:
        main()
    else:
        preload(
            *(f"prefill_router.{name}" for name in ("database", "endpoints", "fitting")),
            "prefill_router_gateway.learning",
        )
        learn._lower_priority = lambda **_: None  # other tests leave few idle moments
        answer_runs()
