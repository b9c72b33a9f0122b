"""The app, and the arguments that several commands have."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from forge.store.layout import RunPaths

app = typer.Typer(
    help="Turn a language model into one that writes fast, correct Triton kernels.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

problems_app = typer.Typer(
    help="Problems that are files.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(problems_app, name="problems")

ExperimentFile = Annotated[Path, typer.Argument(metavar="X.toml", help="Experiment file.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Directory, name, name-n, or `last`.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key: rollout.group_size=4."),
]
Constants = Annotated[
    list[str] | None,
    typer.Option(
        "--override", "--set", metavar="NAME=VALUE", help="A module constant: batch_size=16."
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Precision = Annotated[str, typer.Option(help="fp32, fp16 or bf16.")]
Isolation = Annotated[str, typer.Option(help="As judge.isolation.")]
Wait = Annotated[
    float | None,
    typer.Option("--wait", min=0, metavar="SECONDS", help="For GPUs that another run uses."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Store = Annotated[Path, typer.Option("--store", help="Where run directories are.")]
RUNS = Path("runs")


def find(run: str, store: Path) -> RunPaths:
    from forge.store.layout import find_run

    return find_run(run, store_dir=store)


def require_linux() -> None:
    if sys.platform != "linux":
        from forge.errors import MachineError

        raise MachineError(
            f"forge runs on Linux only, and this is {sys.platform}; reading commands work"
        )
