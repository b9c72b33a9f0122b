"""What a person sees at the end: the evaluations, the best kernel, and where to look further."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge.runner.console import Console
    from forge.store.layout import RunPaths


def show_summary(paths: RunPaths, console: Console) -> None:
    """Print it, as `forge show` does."""
    if console.quiet:
        return
    from forge.views.show import render_best_kernel, render_evaluations, show_run

    shown = show_run(paths)
    if shown["evaluations"]:
        console.show(render_evaluations(shown["evaluations"]))
    if shown["best_kernel"] is not None:
        console.show(render_best_kernel(shown["best_kernel"]))
    name = paths.root if paths.root.parent.name != "runs" else paths.name
    commands = (
        f"show {name}",
        f"rollouts {name} --best",
        f"sql {name} --named failures",
        f"chat {name}",
    )
    console.say("look further:  " + "  ·  ".join(f"forge {command}" for command in commands))
