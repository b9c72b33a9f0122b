"""Checks of the GPUs, servers and environment variables that a run uses, and of `[notify]` and
`[sinks]`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from forge.config.checks.mistake import Mistake, absent, mistake, show
from forge.config.schema import JUDGE_URL, SERVE_URL, EvalStage, Experiment
from forge.config.schema.outlets import DEFAULT_EVENTS, WEBHOOK

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
