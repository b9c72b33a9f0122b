"""Checks of `[cluster]`: an address that can be connected to, and roles that are placed once."""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.checks.mistake import Mistake, mistake, show
from forge.config.schema import CLUSTER_ADDRESS, Experiment


def check_cluster(experiment: Experiment) -> Iterator[Mistake]:
    """Roles on other nodes need an address, and no other place."""
    table = experiment.cluster
    if table.address is None:
        if table.judges:
            text = f"found {table.judges} without cluster.address; both or neither"
            yield mistake(text, "cluster", "judges")
        if table.serve:
            yield mistake("found true without cluster.address; both or neither", "cluster", "serve")
        if table.train_nodes:
            text = f"found {table.train_nodes} without cluster.address; both or neither"
            yield mistake(text, "cluster", "train_nodes")
        return
    if not CLUSTER_ADDRESS.fullmatch(table.address):
        text = f'found "{table.address}"; auto, HOST:PORT or ray://HOST:PORT'
        yield mistake(text, "cluster", "address")
    if not table.judges and not table.serve and not table.train_nodes:
        text = "set, and nothing runs on its nodes; set judges, serve or train_nodes too"
        yield mistake(text, "cluster", "address")
    yield from _check_judges(experiment)
    if table.serve:
        yield from _check_engines(experiment)
    if table.train_nodes and all(stage.kind == "eval" for stage in experiment.stage):
        text = f"found {table.train_nodes}, and no stage trains; a stage of kind sft or grpo, or 0"
        yield mistake(text, "cluster", "train_nodes")


def _check_judges(experiment: Experiment) -> Iterator[Mistake]:
    table, judge = experiment.cluster, experiment.judge
    if table.judges and judge.url:
        text = f"found {table.judges} with judge.url; one of them"
        yield mistake(text, "cluster", "judges")
    if table.judges and experiment.devices.judge:
        text = f"found {show(experiment.devices.judge)} with cluster.judges; one of them"
        yield mistake(text, "devices", "judge")
    if table.judges and table.judge_on == "gpu" and experiment.eval.both_baselines:
        text = "found true; the second baseline is measured by judges of this machine only"
        yield mistake(text, "eval", "both_baselines")


def _check_engines(experiment: Experiment) -> Iterator[Mistake]:
    serve, devices = experiment.serve, experiment.devices
    if serve.url:
        yield mistake("found true with serve.url; one of them", "cluster", "serve")
    if devices.serve:
        text = f"found {show(devices.serve)} with cluster.serve; one of them"
        yield mistake(text, "devices", "serve")
    if serve.engine == "auto" and experiment.cluster.serve_on == "gpu":
        text = 'found "auto", and engines run on other nodes; "vllm", "llama" or "hf"'
        yield mistake(text, "serve", "engine")
    if experiment.cluster.share_gpus and serve.tensor_parallel > 1:
        text = f"found true with serve.tensor_parallel = {serve.tensor_parallel}; false, or 1"
        yield mistake(text, "cluster", "share_gpus")
