"""Checks of `[notify]` and `[sinks]`."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from forge.config.checks.mistake import absent, mistake
from forge.config.schema.outlets import DEFAULT_EVENTS, WEBHOOK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.config.checks.mistake import Mistake
    from forge.config.schema import Experiment


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
