"""A program without torch that runs `prefill-router collect` in forks; see `forked_runs`."""

from packages.router.tests.forked_runs import answer_runs
from packages.router.tests.preload import preload

preload(
    "prefill_router.cli.application",
    "prefill_router.data",
    "prefill_router.endpoints",
    "prefill_router.importers",
    "prefill_router.runs",
    "prefill_router.targets",
    "prefill_router_lab.cli.collect",
    "prefill_router_lab.collection",
)


if __name__ == "__main__":
    answer_runs()
