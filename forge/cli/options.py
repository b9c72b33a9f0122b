"""The app, and arguments that several commands share."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from forge.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.store.layout import RunPaths

app = typer.Typer(
    help="Turn a language model into one that writes fast, correct Triton kernels.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
RUNS = Path("runs")
opened = ExitStack()
"""Resources of the command, released at its end."""


def group(name: str, help: str) -> typer.Typer:
    """A group of commands, `forge NAME ...`."""
    made = typer.Typer(help=help, no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(made, name=name)
    return made


ExperimentFile = Annotated[Path, typer.Argument(metavar="X.toml", help="Experiment file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. rollout.group_size=4."),
]
Constants = Annotated[
    list[str] | None,
    typer.Option(
        "--override",
        metavar="NAME=VALUE",
        help="Set a module constant: batch_size=16, for one problem 3_matmul:N=512, or @FILE.toml.",
    ),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=VALUE,...",
        help="Judge at this shape: N=4096,M=100, 3_matmul:N=512, or @FILE.toml. Repeatable.",
    ),
]
JudgePolicy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        help="Work of torch: own or hybrid, as judge.policy; absent: the protocol's own.",
    ),
]
Protocol = Annotated[
    str | None, typer.Option(help="Protocol: forge, kernelbench or drkernel, as in judge.protocol.")
]
Device = Annotated[str, typer.Option(help="Device: auto, cpu, cuda or cuda:N.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Number of judges; absent: one per core.")]
Precision = Annotated[str, typer.Option(help="Precision: fp32, fp16 or bf16.")]
Isolation = Annotated[str, typer.Option(help="Sandbox level, as in judge.isolation.")]
SitePackages = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Installed distribution that references may import, as in judge.site_packages. "
        "Repeatable.",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", help="Maximum time of each phase: compilation, checked calls, timing."
    ),
]
Wait = Annotated[
    float, typer.Option("--wait", min=0, metavar="SECONDS", help="Maximum wait for GPUs in use.")
]
Assumed = Annotated[
    str | None,
    typer.Option(
        "--assume",
        metavar="MACHINE",
        help='Another machine, e.g. "8xH100-80GB", or several: "4x8xH100-80GB".',
    ),
]
ServedModel = Annotated[
    str | None, typer.Option("--model", help="Model of the server; absent: the only one there.")
]
ApiKeyEnv = Annotated[
    str | None, typer.Option(metavar="VARIABLE", help="Environment variable with the API key.")
]
Socket = Annotated[Path | None, typer.Option(help="Unix socket to create.")]
Listen = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address to listen on.")]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Run in the background.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Store = Annotated[Path, typer.Option("--store", help="Parent of run directories.")]
StoreOfFile = Annotated[
    Path | None,
    typer.Option("--store", help="Parent of run directories; absent: store.dir of the file."),
]


def complete_run(incomplete: str) -> list[str]:
    """Names of runs in runs/ for the shell's completion, the newest first."""
    from forge.store.layout import list_runs

    names = [paths.name for paths in reversed(list_runs(RUNS))]
    return [name for name in (*names, "last") if name.startswith(incomplete)]


RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Run: directory, archive, name, name-n or `last`.",
        autocompletion=complete_run,
    ),
]


def find(run: str, store: Path) -> RunPaths:
    """The run of a name, or of an archive, which is unpacked until the command ends. Raises
    ConfigError if there is none."""
    if Path(run).is_file():
        from forge.views.runs import open_archive

        return opened.enter_context(open_archive(Path(run)))
    from forge.store.layout import find_run

    return find_run(run, store_dir=store)


def settings(overrides: list[str] | None, store: Path | None) -> list[str]:
    """Values of `--set`, with that of `--store`."""
    given = [] if store is None else [f"store.dir={json.dumps(str(store))}"]
    return [*(overrides or ()), *given]


Request = TypeVar("Request")


def as_request(kind: type[Request], given: Mapping[str, Any], **more: Any) -> Request:
    """The options of a command as the dataclass of its request, whose fields have their names; an
    option that is absent leaves the default. `given`: the command's parameters: `locals()`. `more`:
    fields that are no parameter."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    chosen = {name: given[name] for name in names & given.keys() if given[name] is not None}
    return kind(**chosen | more)


def require_linux() -> None:
    """Raises MachineError on other systems, and under limits that are too low for children."""
    if sys.platform != "linux":
        raise MachineError(
            f"forge runs on Linux only, and this is {sys.platform}; commands that read runs work"
        )
    from forge.process.machine import require_limits

    require_limits()
