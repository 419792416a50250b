"""Loads tasks from the hub that HF_ENDPOINT names; arguments: specification, revision."""

from packages.router.tests.fakes.hub_worker import do_jobs
from prefill_router_lab.benchmarks import LoadReport, load_tasks


def work(spec: str, revision: str | None) -> dict[str, object]:
    report = LoadReport()
    ids = [task.query.id for task in load_tasks(spec, revision=revision, report=report)]
    return {"ids": ids, "source": report.source}


if __name__ == "__main__":
    do_jobs(work)
