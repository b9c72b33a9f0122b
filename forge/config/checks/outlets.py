"""What `[notify]` and `[sinks]` cannot be together. Called by `checks`."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from forge.config.checks.mistake import Mistake
from forge.config.schema.outlets import ON, WEBHOOK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.config.schema import Experiment


def outlets(experiment: Experiment) -> Iterator[Mistake]:
    """Mistakes between their keys; a variable is looked for on this machine only."""
    notify, sinks = experiment.notify, experiment.sinks
    if notify.webhook and notify.webhook_env:
        yield Mistake(
            path=("notify", "webhook_env"),
            text="found it beside notify.webhook; exactly one of them",
        )
    elif notify.webhook_env:
        url = os.environ.get(notify.webhook_env)
        if url is None or not re.fullmatch(WEBHOOK, url):
            found = "which is not set" if url is None else "which holds no http(s)://HOST[/PATH]"
            yield Mistake(
                path=("notify", "webhook_env"),
                text=f'found "{notify.webhook_env}", {found}; a variable with the URL',
                is_about_here=True,
            )
    if notify.on != list(ON) and not notify.is_asked:
        yield Mistake(
            path=("notify", "on"),
            text="found it without command and webhook; one of them, to be told by",
        )
    if sinks.wandb_mode != "online" and "wandb" not in sinks.to:
        yield Mistake(
            path=("sinks", "wandb_mode"), text='found it without "wandb" in sinks.to; both or none'
        )
