"""What a person sees at the end: the evaluations, the best kernel, and where to look further."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.store.reader import open_run

if TYPE_CHECKING:
    from forge.runner.console import Console
    from forge.store.layout import RunPaths


def show_summary(paths: RunPaths, console: Console) -> None:
    """Print it. Reads the store only, so `forge show` has the same numbers."""
    if console.quiet:
        return
    from rich.syntax import Syntax

    from forge.views.show import render_evaluations, show_run

    shown = show_run(paths)
    if shown["evaluations"]:
        console.show(render_evaluations(shown["evaluations"]))
    with open_run(paths) as reader:
        best = reader.one(
            "SELECT * FROM v_best_kernels WHERE purpose <> 'chat' ORDER BY rank LIMIT 1"
        )
    if best:
        console.say(
            f"best kernel: {best['problem_id']}  ({best['turn_id']}, ranked by {best['ranked_by']})"
        )
        console.show(Syntax(best["code"], "python", word_wrap=True))
    name = paths.root if paths.root.parent.name != "runs" else paths.name
    commands = (
        f"show {name}",
        f"rollouts {name} --best",
        f"sql {name} --named failures",
        f"chat {name}",
    )
    console.say("look further:  " + "  ·  ".join(f"forge {command}" for command in commands))
