"""Checks of the GPUs, servers, other machines and environment variables that a run uses, and of
`[notify]` and `[sinks]`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from forge.config.checks.mistake import Mistake, absent, mistake, show
from forge.config.schema import CLUSTER_ADDRESS, JUDGE_URL, SERVE_URL, EvalStage, Experiment
from forge.config.schema.experiment import DEFAULT_EVENTS, WEBHOOK

PINNING = re.compile(r"\w+_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|GPU_DEVICE_ORDINAL")
"""Variables by which drivers choose GPUs. A child gets them from the plan."""


def check_devices(experiment: Experiment) -> Iterator[Mistake]:
    """GPUs for a role only if there are some, and shared evenly by the replicas."""
    devices, replicas = experiment.devices, experiment.serve.replicas
    wanted = {"train": devices.train, "serve": devices.serve, "judge": devices.judge}
    for role, num in wanted.items():
        if num and devices.gpus is None:
            text = f'found {show(num)}, and devices.gpus is absent; set it to "auto" or a list'
            yield mistake(text, "devices", role)
    if devices.serve == "auto" or not devices.serve:
        return
    if replicas > devices.serve and replicas % devices.serve:
        yield mistake(
            f"found {replicas} replicas on {devices.serve} GPUs; one per GPU, or the same number "
            "on each GPU",
            *("serve", "replicas"),
        )
    if devices.serve > replicas and devices.serve % replicas:
        text = f"found {devices.serve} GPUs for {replicas} replicas; the same number for each"
        yield mistake(text, "devices", "serve")


def check_pinning(experiment: Experiment) -> Iterator[Mistake]:
    """No `env` table chooses the GPUs of a child, which could belong to another process."""
    for table, env in (("serve", experiment.serve.env), ("judge", experiment.judge.env)):
        for name, value in env.items():
            if PINNING.fullmatch(name):
                text = f"found {show(value)}; remove it, devices.gpus chooses the GPUs"
                yield mistake(text, table, "env", name)


def check_judge_url(experiment: Experiment) -> Iterator[Mistake]:
    """Addresses of judge pools in a form that can be connected to."""
    for index, url in enumerate(experiment.judge.url):
        if not JUDGE_URL.fullmatch(url):
            yield mistake(f'found "{url}"; http://HOST:PORT or unix:/PATH', "judge", "url", index)


def check_serve_url(experiment: Experiment) -> Iterator[Mistake]:
    """Addresses of model servers, the keys that need one, and stages that they cannot serve."""
    serve = experiment.serve
    for index, url in enumerate(serve.url):
        if not SERVE_URL.fullmatch(url):
            text = f'found "{url}"; http://HOST:PORT[/PATH] or unix:/PATH'
            yield mistake(text, "serve", "url", index)
    for name in ("api_key_env", "model_name"):
        if getattr(serve, name) and not serve.url:
            yield mistake("set without serve.url; it applies to that server", "serve", name)
    trained = [i for i, stage in enumerate(experiment.stage) if not isinstance(stage, EvalStage)]
    if serve.url and trained and not serve.api_key_env:
        yield mistake(
            "absent, with serve.url and a stage that trains; the variable with the token of forge "
            "serve --weights, or eval stages only",
            *("serve", "api_key_env"),
        )


def check_outlets(experiment: Experiment) -> Iterator[Mistake]:
    """Keys that exclude or need each other, and a variable that does not hold a URL here."""
    notify, sinks = experiment.notify, experiment.sinks
    if notify.webhook and notify.webhook_env:
        text = "set together with notify.webhook; exactly one of them"
        yield mistake(text, "notify", "webhook_env")
    elif notify.webhook_env:
        url = os.environ.get(notify.webhook_env)
        if url is None or not re.fullmatch(WEBHOOK, url):
            found = "which is not set" if url is None else "which is not http(s)://HOST[/PATH]"
            text = f'found "{notify.webhook_env}", {found}; a variable that holds the URL'
            yield absent(text, "notify", "webhook_env")
    if notify.on != list(DEFAULT_EVENTS) and not notify.is_configured:
        text = "set without command or webhook; set one of them to receive messages"
        yield mistake(text, "notify", "on")
    if sinks.wandb_mode != "online" and "wandb" not in sinks.to:
        yield mistake('set without "wandb" in sinks.to; both or neither', "sinks", "wandb_mode")


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
