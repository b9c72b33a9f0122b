"""Compares judges of this machine with judges on Ray nodes: verdicts a second and CPU time.

    PYTHONPATH=/path/with/ray python bench/cluster_judges.py     # 8 rounds of 32 answers

The nodes are processes of this machine (`ray.cluster_utils.Cluster`), with one core and one judge
each, as judges at home have a core each. Both pools
are open at once and judge new answers to generated problems in turn, in an order that alternates.
CPU time is reported by process: `judge` (with its children), `supervisor` (this process), `broker`,
`host` (Ray actors that hold a judge) and `ray` (its daemons). The overhead is the median over the
rounds of the nodes' CPU time over the one at home, minus 1; `idle` is each process's CPU time a
second while no pool judges. Exit code 1 if a verdict is not correct.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import anyio
import psutil
from judge_workload import Task, repeated, tasks

from forge.cluster.cluster import open_cluster
from forge.cluster.judges import judges_elsewhere
from forge.config.schema import ClusterTable, JudgeTable
from forge.evalpool.pool import Pool, open_pool

NODES = Path(__file__).resolve().parents[1] / "tests" / "cluster" / "local_nodes.py"
ROLES = {"forge.cluster.broker": "broker", "ray::": "host", "forge.evalpool.judge.app": "judge"}
"""Role of a process and its children, by a part of its command; the last that fits counts."""
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_by_role(nodes_pid: int) -> dict[str, float]:
    """CPU seconds of all processes of this measurement, ended ones included."""
    found: dict[str, float] = dict.fromkeys(("judge", "supervisor", "broker", "host", "ray"), 0.0)

    def add(process: psutil.Process, role: str) -> None:
        with suppress(psutil.Error, FileNotFoundError, ProcessLookupError):
            command = " ".join(process.cmdline())
            for part, name in ROLES.items():
                role = name if part in command else role
            role = "ray" if process.pid == nodes_pid else role
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            found[role] += sum(map(int, fields[11:15])) / TICKS
            for child in process.children():
                add(child, role)

    add(psutil.Process(), "supervisor")
    return found


def make_work(given: argparse.Namespace, number: int) -> list[Task]:
    """Answers of a round, which no cache knows, to problems of its own."""
    num_problems = -(-given.answers // given.siblings)
    found = tasks("quickstart", num=num_problems * (number + 1))[-num_problems:]
    return repeated(found, num=given.answers, siblings=given.siblings, is_cold=True)


async def judge_all(pool: Pool, found: list[Task], given: argparse.Namespace) -> None:
    """Judges answers, some at a time. Ends this process if one is not correct."""
    work = iter(found)

    async def play() -> None:
        for task in work:
            verdict = await pool.judge(task.problem, task.code)
            if not verdict.is_correct:
                sys.exit(f"{task.problem.problem_id}: {verdict.reason}: {verdict.detail}")

    async with anyio.create_task_group() as players:
        for _ in range(given.in_flight):
            players.start_soon(play)


async def measure(given: argparse.Namespace, address: str, nodes_pid: int) -> None:
    """Judges in turn at home and on nodes, and prints."""
    table = JudgeTable(workers=given.judges)
    cluster_table = ClusterTable(address=address, judges=given.judges, judge_on="cpu")
    walls: dict[str, list[float]] = {"home": [], "nodes": []}
    cpus: dict[str, list[dict[str, float]]] = {"home": [], "nodes": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (home_dir := folder / "home").mkdir()
        async with (
            open_cluster(cluster_table, run="bench", socket_dir=folder, log_dir=folder) as cluster,
            open_pool(
                table, socket_dir=folder, log_dir=folder,
                elsewhere=judges_elsewhere(cluster, cluster_table, table),
            ) as there,
            open_pool(table, socket_dir=home_dir, log_dir=home_dir) as home,
        ):  # fmt: skip
            pools = {"home": home, "nodes": there}
            for number in range(-1, given.rounds):  # the first round warms both up
                for way in ("home", "nodes") if number % 2 else ("nodes", "home"):
                    work = make_work(given, number + 1)
                    began, before = time.monotonic(), cpu_by_role(nodes_pid)
                    await judge_all(pools[way], work, given)
                    wall_s, after = time.monotonic() - began, cpu_by_role(nodes_pid)
                    if number >= 0:
                        walls[way].append(wall_s)
                        cpus[way].append({role: after[role] - before[role] for role in after})
            before = cpu_by_role(nodes_pid)
            await anyio.sleep(given.idle_s)
            after = cpu_by_role(nodes_pid)
    report(walls, cpus, given.answers)
    idle = {role: 1e3 * (after[role] - before[role]) / given.idle_s for role in after}
    print("idle, CPU ms a second:", shown(idle))


def report(
    walls: dict[str, list[float]], cpus: dict[str, list[dict[str, float]]], num: int
) -> None:
    """Prints the figures of both ways."""
    for way, found in cpus.items():
        each = {
            role: 1e3 * statistics.median(one[role] for one in found) / num for role in found[0]
        }
        total = 1e3 * statistics.median(sum(one.values()) for one in found) / num
        print(
            f"{way}: {num / statistics.median(walls[way]):.2f} verdicts/s, CPU ms a verdict: "
            f"{total:.1f} ({shown(each)})"
        )
    whole = {way: [sum(one.values()) for one in found] for way, found in cpus.items()}
    own = {way: [sum(one.values()) - one["ray"] for one in found] for way, found in cpus.items()}
    print("overhead, CPU of all:", overhead(whole))
    print("overhead, CPU without Ray's daemons:", overhead(own))
    print("overhead, wall:", overhead(walls))


def overhead(found: dict[str, list[float]]) -> str:
    """Median and quartiles of the ratios of paired rounds, minus 1."""
    ratios = [there / home for there, home in zip(found["nodes"], found["home"], strict=True)]
    low, middle, high = statistics.quantiles(ratios)
    return f"{middle - 1:+.1%} (quartiles {low - 1:+.1%} to {high - 1:+.1%})"


def shown(figures: dict[str, float]) -> str:
    """Figures by role in one line."""
    return ", ".join(f"{role} {value:.2f}" for role, value in figures.items())


def main() -> None:
    """Starts the nodes, measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--judges", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--answers", type=int, default=32)
    parser.add_argument("--siblings", type=int, default=8)
    parser.add_argument("--in-flight", type=int, default=4)
    parser.add_argument("--idle-s", type=float, default=10.0)
    given = parser.parse_args()
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, str(NODES), "80"], stdin=pipe, stdout=pipe, text=True
    ) as nodes:
        assert nodes.stdin is not None
        assert nodes.stdout is not None
        address = nodes.stdout.readline().strip()
        cores = sorted(os.sched_getaffinity(0))
        for number in range(given.judges):
            nodes.stdin.write(f"add judge 1 {cores[number % len(cores)]}\n")
            nodes.stdin.flush()
            nodes.stdout.readline()
        try:
            anyio.run(measure, given, address, nodes.pid)
        finally:
            nodes.stdin.close()
            nodes.wait(60)


if __name__ == "__main__":
    main()
