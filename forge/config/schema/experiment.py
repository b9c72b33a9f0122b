"""The whole of an experiment file. `[store]` and `[limits]`: storage and limits of a run.
`[notify]` and `[sinks]`: messages to people and copies of the metrics; neither delays a run for
long or fails it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from forge.config.schema.base import NAME_RULE, KeyPath, PathValue, Positive, Table
from forge.config.schema.judge import JudgeTable
from forge.config.schema.problems import DataTable, ProblemsTable
from forge.config.schema.rollout import EvalTable, PromptTable, RewardTable, RolloutTable
from forge.config.schema.serving import ClusterTable, DevicesTable, ServeTable
from forge.config.schema.training import ModelTable, RoundTable, Stage

WEBHOOK = r"^https?://[^\s/]+(/\S*)?$"
"""Pattern of a webhook's URL, in the file and in an environment variable."""

DEFAULT_EVENTS = ("done", "failed", "stalled", "best")


class StoreTable(Table):
    """`[store]`: location and content of a run's storage."""

    dir: PathValue = Path("runs")
    """Parent of run directories, relative to the working directory."""
    texts: Literal["plain", "zstd"] = "zstd"
    """Storage of texts: compressed, or plain, which stock sqlite3 can read."""
    keep_tokens: Annotated[
        str,
        Field(
            pattern=r"^(all|untrained|last:[1-9]\d*)$",
            json_schema_extra={"allowed": '"all", "untrained" or "last:N"'},
        ),
    ] = "all"
    """Token ids and logprobs kept in tokens.db. all: every turn up to 20 GB, then as untrained.
    untrained: only what a resume needs. last:N: the last N steps."""
    min_free_bytes: Annotated[int, Field(ge=0)] = 500_000_000
    """Free disk space below which a run saves and stops."""


class LimitsTable(Table):
    """`[limits]`: an attempt that reaches one saves and stops; each resume is a new attempt."""

    hours: Annotated[float, Field(gt=0)] | None = None
    """Maximum wall-clock time of an attempt."""
    tokens: Positive | None = None
    """Maximum number of generated tokens in an attempt."""


class NotifyTable(Table):
    """`[notify]`: messages to people."""

    command: Annotated[str, Field(min_length=1)] | None = None
    """Shell command for each message. Its environment has FORGE_RUN, FORGE_EVENT, FORGE_MESSAGE and
    FORGE_RUN_DIR; its stdin has the same as JSON."""
    webhook: Annotated[
        str | None,
        Field(pattern=WEBHOOK, json_schema_extra={"allowed": "http(s)://HOST[:PORT][/PATH]"}),
    ] = None
    """URL that receives each message as JSON; Slack, Mattermost and Discord show it. It is
    stored with the run; use webhook_env for a secret URL."""
    webhook_env: Annotated[
        str | None,
        Field(
            pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
            json_schema_extra={"allowed": "the name of a variable"},
        ),
    ] = None
    """Environment variable that holds the URL, instead of webhook."""
    on: Annotated[
        list[Literal["done", "failed", "stalled", "stopped", "best"]],
        Field(
            min_length=1,
            json_schema_extra={
                "allowed": 'a list of "done", "failed", "stalled", "stopped", "best"'
            },
        ),
    ] = Field(default_factory=lambda: list(DEFAULT_EVENTS))
    """Events that send a message. done, failed, stalled (exit 5), stopped (by a person or by
    [limits]): the end of an attempt. best: an evaluation above all earlier ones of its size, or a
    kernel at least 10% faster than any before."""
    timeout_s: Annotated[float, Field(gt=0, le=300)] = 10.0
    """Maximum time for the command and for the webhook, each. The end of a run waits no longer."""

    @property
    def is_configured(self) -> bool:
        """True if there is a command or a webhook."""
        return any((self.command, self.webhook, self.webhook_env))


class SinksTable(Table):
    """`[sinks]`: other destinations of each step's metrics, which the store has in any case."""

    to: Annotated[
        list[Literal["tensorboard", "trackio", "wandb"]],
        Field(json_schema_extra={"allowed": 'a list of "tensorboard", "trackio", "wandb"'}),
    ] = Field(default_factory=list[Literal["tensorboard", "trackio", "wandb"]])
    """Destinations, each fed by a child process that reads the store. tensorboard and wandb write
    below the run's directory, trackio to TRACKIO_DIR."""
    project: Annotated[str, NAME_RULE] = "forge"
    """Project of the runs in trackio and wandb."""
    wandb_mode: Literal["online", "offline"] = "online"
    """online: sends the metrics, and needs WANDB_API_KEY. offline: writes files that "wandb sync"
    can send later."""


class Experiment(Table):
    """A whole experiment file."""

    name: Annotated[str, NAME_RULE]
    """Name of the experiment; its run directories are named <name>-<n>."""
    seed: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    """Seed of all random choices except the judge's inputs."""
    model: ModelTable
    """The model to train and serve."""
    problems: ProblemsTable = ProblemsTable()
    """The problems to solve."""
    data: DataTable = DataTable()
    """Rows for supervised fine-tuning."""
    prompt: PromptTable = PromptTable()
    """Texts that the model is asked with."""
    devices: DevicesTable = DevicesTable()
    """GPUs of each role."""
    serve: ServeTable = ServeTable()
    """Inference engines."""
    judge: JudgeTable = JudgeTable()
    """Compiling, checking and timing candidates."""
    cluster: ClusterTable = ClusterTable()
    """Other machines that judge and generate for the run."""
    reward: RewardTable = RewardTable()
    """Terms of the reward of one verdict."""
    rollout: RolloutTable = RolloutTable()
    """Sampling groups of rollouts for GRPO."""
    eval: EvalTable = EvalTable()
    """Measuring a policy on held-out problems."""
    store: StoreTable = StoreTable()
    """Storage of runs."""
    limits: LimitsTable = LimitsTable()
    """Limits of an attempt."""
    notify: NotifyTable = NotifyTable()
    """Messages to people."""
    sinks: SinksTable = SinksTable()
    """Other destinations of the metrics."""
    stage: list[Stage] = Field(
        default_factory=list[Stage], json_schema_extra={"allowed": "one [[stage]] or more"}
    )
    """Stages in order."""
    round: list[RoundTable] = Field(
        default_factory=list[RoundTable],
        exclude=True,
        json_schema_extra={"allowed": "one [[round]] or more"},
    )
    """Stages that are repeated after these. A run has each round's stages among its own."""

    def unrolled(self) -> tuple[Experiment, list[KeyPath]]:
        """The experiment with the stages of all rounds among its own, and the key of each stage in
        the file."""
        stages = list(self.stage)
        keys: list[KeyPath] = [("stage", index) for index in range(len(stages))]
        rounds = [at for at, table in enumerate(self.round) for _ in range(table.repeat)]
        for number, at in enumerate(rounds, start=1):
            for index, stage in enumerate(self.round[at].stage):
                stages.append(stage.model_copy(update={"round": number}))
                keys.append(("round", at, "stage", index))
        return self.model_copy(update={"stage": stages, "round": []}), keys
