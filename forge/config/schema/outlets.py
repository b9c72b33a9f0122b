"""`[notify]` and `[sinks]`: who is told of a run, and where else its numbers go. Neither can hold a
run up or fail it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from forge.config.schema.base import Table

WEBHOOK = r"^https?://[^\s/]+(/\S*)?$"
"""What a webhook's URL looks like, here and in its environment variable."""

ON = ("done", "failed", "stalled", "best")


class NotifyTable(Table):
    """`[notify]`: telling a person."""

    command: Annotated[str, Field(min_length=1)] | None = None
    """Shell command that is run with FORGE_RUN, FORGE_EVENT, FORGE_MESSAGE and FORGE_RUN_DIR in its
    environment and the same as JSON on its stdin."""
    webhook: Annotated[
        str | None,
        Field(pattern=WEBHOOK, json_schema_extra={"allowed": "http(s)://HOST[:PORT][/PATH]"}),
    ] = None
    """URL that the JSON is posted to; Slack, Mattermost and Discord show it. It is stored with the
    run: a secret one is better named by webhook_env."""
    webhook_env: Annotated[
        str | None,
        Field(
            pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
            json_schema_extra={"allowed": "the name of a variable"},
        ),
    ] = None
    """Environment variable that holds the URL instead."""
    on: Annotated[
        list[Literal["done", "failed", "stalled", "stopped", "best"]],
        Field(
            min_length=1,
            json_schema_extra={
                "allowed": 'a list of "done", "failed", "stalled", "stopped", "best"'
            },
        ),
    ] = Field(default_factory=lambda: list(ON))
    """done, failed, stalled (exit 5), stopped (by a person or by [limits]): how an attempt ended.
    best: an evaluation above all of its size before it, or a kernel faster than any before by a
    tenth."""
    timeout_s: Annotated[float, Field(gt=0, le=300)] = 10.0
    """How long command and webhook may take each time; the end of a run waits no longer."""

    @property
    def is_asked(self) -> bool:
        """Whether anybody is to be told."""
        return any((self.command, self.webhook, self.webhook_env))


class SinksTable(Table):
    """`[sinks]`: other places for the numbers of each step; the store has them anyway."""

    to: Annotated[
        list[Literal["tensorboard", "trackio", "wandb"]],
        Field(json_schema_extra={"allowed": 'a list of "tensorboard", "trackio", "wandb"'}),
    ] = Field(default_factory=list)
    """Each is fed by a child process that follows the store. tensorboard and wandb write below the
    run's directory, trackio where TRACKIO_DIR says."""
    project: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
            json_schema_extra={"allowed": "1 to 64 letters, digits, ., _ and -, no mark first"},
        ),
    ] = "forge"
    """The runs' project in trackio and wandb."""
    wandb_mode: Literal["online", "offline"] = "online"
    """offline: files that "wandb sync" sends later. Online, WANDB_API_KEY is read."""
    close_timeout_s: Annotated[float, Field(gt=0, le=600)] = 30.0
    """How long the end of a run waits for what a sink has not written yet."""
