"""A Ray cluster on this machine, whose workers and nodes die, and whose nodes come, on command.

Run as a program. Its first node has one processor, those that are added have another each, and say
that they have a GPU. It prints the cluster's address, and then an answer to each line of its input:
`kill` ends a worker with a state, `count` tells how many there are, `remove` ends the oldest node,
and `add` starts one.
"""

import os
import signal
import sys
from pathlib import Path

SMALL = {"object_store_memory": 80 << 20, "include_log_monitor": False}


def descendants(pid: int) -> list[int]:
    try:
        threads = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    children = [int(child) for text in threads for child in text.split()]
    return children + [below for child in children for below in descendants(child)]


def workers() -> list[int]:
    """The processes of actors with a state."""
    pids = []
    for pid in descendants(os.getpid()):
        path = Path(f"/proc/{pid}/cmdline")
        if path.exists() and b"_Worker" in path.read_bytes():
            pids.append(pid)
    return pids


def main() -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **SMALL}
    )
    nodes = [cluster.add_node(num_cpus=1, **SMALL)]
    sys.stdout.write(f"{cluster.address}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        answer = len(nodes)
        if line.strip() == "kill":
            answer = workers()[0]
            os.kill(answer, signal.SIGKILL)
        elif line.strip() == "count":
            answer = len(workers())
        elif line.strip() == "remove":
            cluster.remove_node(nodes.pop(0), allow_graceful=False)
            answer = len(nodes)
        elif line.strip() == "add":
            nodes.append(cluster.add_node(num_cpus=1, num_gpus=1, **SMALL))
            answer = len(nodes)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
    cluster.shutdown()


if __name__ == "__main__":
    main()
