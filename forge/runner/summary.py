"""What a person sees at the end: the evaluations, the best kernel, and where to look further."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.store.reader import open_run

if TYPE_CHECKING:
    from forge.runner.console import Console
    from forge.store.layout import RunPaths


def show_summary(paths: RunPaths, console: Console) -> None:
    """Print it. Reads the store only, so `forge show` has the same numbers."""
    if console.quiet:
        return
    from rich.syntax import Syntax

    from forge.views.show import show_run

    shown = show_run(paths)
    if shown["evaluations"]:
        console.show(evaluation_table(shown["evaluations"]))
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


def evaluation_table(evaluations: list[dict[str, Any]]) -> Any:
    """One row an evaluation, oldest first."""
    from rich.table import Table

    table = Table(title="held-out problems", title_justify="left")
    for heading in (
        "stage",
        "pass@1",
        "95 %",
        "greedy",
        "multi-turn",
        "pass@k",
        "compiles",
        "problems",
    ):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    for row in evaluations:
        k, best_k = max(
            ((int(k), v) for k, v in row["pass_at_k"].items()), default=(1, row["pass_at_1"])
        )
        greedy = row["pass_at_1_greedy"]
        table.add_row(
            row["stage"],
            f"{row['pass_at_1']:.1%}",
            f"{row['ci_low']:.1%} to {row['ci_high']:.1%}",
            "" if greedy is None else f"{greedy:.1%}",
            f"{row['pass_at_1_multi']:.1%}",
            f"@{k} {best_k:.1%}",
            f"{row['compile_rate']:.1%}",
            f"{row['num_problems']} x {row['num_samples']}",
        )
    return table
