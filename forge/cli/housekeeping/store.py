"""Commands on a whole store directory: ps, gc."""

from __future__ import annotations

from typing import Annotated

import typer

from forge.cli.options import RUNS, Json, Store, app
from forge.cli.printing import print_json, print_lines, print_rich, say


@app.command()
def ps(store: Store = RUNS, as_json: Json = False) -> None:
    """List the runs that are running now."""
    from forge.commands.running import load_running, render_running

    found = load_running(store)
    if as_json:
        return print_json(found)
    if not found:
        return say(f"{store}/: no run is running")
    print_rich(render_running(found))


@app.command()
def gc(
    with_checkpoints: Annotated[
        bool,
        typer.Option(
            "--checkpoints",
            help="Also checkpoints of done runs, except the newest and the best of each stage.",
        ),
    ] = False,
    is_confirmed: Annotated[
        bool, typer.Option("--yes", help="Remove them; otherwise they are only listed.")
    ] = False,
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """List what killed commands left in a store directory, and remove it with --yes."""
    import time

    from forge.commands.garbage import describe, find_garbage, remove
    from forge.views.text.numbers import size

    found = find_garbage(store, now=time.time(), with_checkpoints=with_checkpoints)
    if not found and not as_json:
        return say(f"{store}/: nothing to remove")
    if not as_json:
        print_lines(describe(found))
    freed, kept = remove(found) if is_confirmed else (0, [])
    if as_json:
        items = [each.to_json() for each in found]
        return print_json({"found": items, "removed": is_confirmed, "kept": kept})
    for line in kept:
        say(line)
    say(f"removed: {size(freed)}" if is_confirmed else "nothing was removed; --yes removes it")
