"""`python local_nodes.py STORE_MB`: a Ray cluster of nodes on this machine, driven over stdin.

    add LABEL CPUS [CORE ...] → node N      kill N → killed N
    raylet N → raylet PID, whose children are the node      end of stdin: the cluster ends
    actors → actors NUMBER, of those that live      holder PID → holder N, the process's node

The first line printed is the address. The head has the label `head`. A node with CORES has these
alone, as on a machine of its own; without, it counts all cores of this machine as its own. Runs in
a process of its own, since Ray takes signals and warns while it is imported.
"""

import os
import sys

import psutil
import ray  # pyright: ignore[reportMissingImports]
from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]


def living_actors(address: str) -> list[str]:
    """Ids of the actors that Ray has not ended."""
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    actors = ray._private.state.actors().items()
    return [key for key, actor in actors if actor["State"] != "DEAD"]


def main() -> None:
    store_bytes = int(sys.argv[1]) << 20
    settings = {"object_store_memory": store_bytes, "include_dashboard": False}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "num_gpus": 0, "labels": {"role": "head"}, **settings},
    )
    nodes, own = [], os.sched_getaffinity(0)
    try:
        print(cluster.address, flush=True)  # noqa: T201
        for line in sys.stdin:
            match line.split():
                case ["add", label, cpus, *cores]:
                    os.sched_setaffinity(0, set(map(int, cores)) or own)
                    nodes.append(
                        cluster.add_node(
                            num_cpus=int(cpus), labels={"role": label},
                            object_store_memory=store_bytes,
                        )
                    )  # fmt: skip
                    print(f"node {len(nodes) - 1}", flush=True)  # noqa: T201
                case ["kill", number]:
                    cluster.remove_node(nodes[int(number)], allow_graceful=False)
                    print(f"killed {number}", flush=True)  # noqa: T201
                case ["holder", pid]:
                    above = {each.pid for each in psutil.Process(int(pid)).parents()}
                    raylets = [each.all_processes["raylet"][0].process.pid for each in nodes]
                    number = next(i for i, each in enumerate(raylets) if each in above)
                    print(f"holder {number}", flush=True)  # noqa: T201
                case ["raylet", number]:
                    raylet = nodes[int(number)].all_processes["raylet"][0].process.pid
                    print(f"raylet {raylet}", flush=True)  # noqa: T201
                case ["actors"]:
                    print(f"actors {len(living_actors(cluster.address))}", flush=True)  # noqa: T201
                case _:
                    raise ValueError(line)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
