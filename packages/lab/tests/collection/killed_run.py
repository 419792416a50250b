"""A program without torch that runs `prefill-router collect` in forks; see `forked_runs`."""

from packages.router.tests.forked_runs import answer_runs
from packages.router.tests.preload import preload

preload(
    "cli.application",
    "cli.collect",
    "cli.labels",
    "data",
    "endpoints",
    "harness",
    "importers",
    "targets",
)


if __name__ == "__main__":
    answer_runs()
