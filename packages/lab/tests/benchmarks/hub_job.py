"""Loads tasks from the hub that HF_ENDPOINT names, in a process of its own for each job, since the
hub's library reads its settings when it is imported.

Each line of standard input is a job, [environment, specification, revision], each line printed its
answer.
"""

import json
import os
import sys

from prefill_router.errors import PrefillRouterError
from prefill_router_lab.benchmarks import LoadReport, load_tasks


def answer(environment: dict[str, str], spec: str, revision: str | None) -> None:
    os.environ.update(environment)
    report = LoadReport()
    told: dict[str, object] = {}
    try:
        told["ids"] = [task.query.id for task in load_tasks(spec, revision=revision, report=report)]
    except PrefillRouterError as error:
        told |= {"error": type(error).__name__, "message": str(error)}
    sys.stdout.write(json.dumps({**told, "source": report.source}) + "\n")


if __name__ == "__main__":
    for line in sys.stdin:
        child = os.fork()
        if not child:
            answer(*json.loads(line))
            sys.exit(0)
        if os.waitpid(child, 0)[1]:
            sys.stdout.write('{"error": "it crashed", "message": "see the standard error"}\n')
        sys.stdout.flush()
