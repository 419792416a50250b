"""A Ray cluster of several nodes on this machine, whose workers and nodes die on command.

One of its two nodes says that it has a GPU. Run as a program. It prints the cluster's address, and
then an answer to each line of its input: `kill` ends a worker that has an encoder, `remove` a node,
and `add` starts one.
"""

import os
import signal
import sys
from pathlib import Path

STORE = {"object_store_memory": 80 << 20}


def descendants(pid: int) -> list[int]:
    try:
        threads = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except FileNotFoundError:
        return []
    children = [int(child) for text in threads for child in text.split()]
    return children + [below for child in children for below in descendants(child)]


def encoders() -> list[int]:
    """The processes of the actors."""
    found = []
    for pid in descendants(os.getpid()):
        path = Path(f"/proc/{pid}/cmdline")
        if path.exists() and b"MapWorker" in path.read_bytes():
            found.append(pid)
    return found


def main() -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **STORE})
    nodes = [cluster.add_node(num_cpus=1 + gpus, num_gpus=gpus, **STORE) for gpus in (0, 1)]
    cluster.wait_for_nodes()
    sys.stdout.write(f"{cluster.address}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        answer = "none"
        if line.strip() == "kill" and (found := encoders()):
            os.kill(found[0], signal.SIGKILL)
            answer = str(found[0])
        elif line.strip() == "remove":
            cluster.remove_node(nodes.pop(0))
            answer = str(len(nodes))
        elif line.strip() == "add":
            nodes.append(cluster.add_node(num_cpus=1, **STORE))
            answer = str(len(nodes))
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
    cluster.shutdown()


if __name__ == "__main__":
    main()
