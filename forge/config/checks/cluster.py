"""Checks of `[cluster]`: an address that can be connected to, and roles that are placed once."""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.checks.mistake import Mistake, mistake, show
from forge.config.schema import CLUSTER_ADDRESS, Experiment


def check_cluster(experiment: Experiment) -> Iterator[Mistake]:
    """Roles on other nodes need an address, and no other place."""
    table, judge = experiment.cluster, experiment.judge
    if table.address is None:
        if table.judges:
            text = f"found {table.judges} without cluster.address; both or neither"
            yield mistake(text, "cluster", "judges")
        return
    if not CLUSTER_ADDRESS.fullmatch(table.address):
        text = f'found "{table.address}"; auto, HOST:PORT or ray://HOST:PORT'
        yield mistake(text, "cluster", "address")
    if not table.judges:
        text = "set, and nothing runs on its nodes; set cluster.judges too"
        yield mistake(text, "cluster", "address")
    if table.judges and judge.url:
        text = f"found {table.judges} with judge.url; one of them"
        yield mistake(text, "cluster", "judges")
    if table.judges and experiment.devices.judge:
        text = f"found {show(experiment.devices.judge)} with cluster.judges; one of them"
        yield mistake(text, "devices", "judge")
    if table.judges and table.judge_on == "gpu" and experiment.eval.both_baselines:
        text = "found true; the second baseline is measured by judges of this machine only"
        yield mistake(text, "eval", "both_baselines")
