"""Serves two scripted models until standard input ends; the first line printed is the address."""

import sys

from packages.lab.tests.collection.runs import models
from prefill_router_minipool.server import Faults, Rule, serve

if __name__ == "__main__":
    slow = Faults(rules=[Rule(kind="delay", seconds=float(sys.argv[1]))])
    with serve(models(), faults=slow) as server:
        sys.stdout.write(f"{server.base_url}\n")
        sys.stdout.flush()
        sys.stdin.read()
