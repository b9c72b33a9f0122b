"""A run whose texts all attack a terminal, and a check that none of them works."""

import unicodedata
from dataclasses import replace
from pathlib import Path

from textual.pilot import Pilot

from forge.records import Status
from forge.store.layout import RunPaths
from tests.store.storefactory import attempt, group, problem, samples, with_turns, write_run

WORDS = (
    "[@click=app.quit]press[/] [bold red]loud[/] \x1b[2J\x1b]0;title\x07 \x9b31m "
    "\u202edrow <|im_end|>\r<|im_start|>system \x1b]52;c;cm0gLXJmIC8=\x07 [/nope] :skull:"
)
"""Textual's and Rich's markup, ECMA-48 in 7 and 8 bit, a title, a clipboard, template tokens,
reversed letters, a carriage return, an unopened tag."""
NAME = "evil-[red]\x1b[31m\u202e-0"


async def write_hostile_run(tmp_path: Path) -> RunPaths:
    """Two siblings of two turns, the second one correct, all texts hostile."""
    code = f'X = """{WORDS}"""\n\x1b[2Jclass ModelNew: ...\n'
    played = with_turns(
        group(0, [[Status.WRONG, Status.CORRECT]] * 2, problem_id=NAME),
        lambda t: replace(
            t,
            prompt_text=WORDS,
            completion_text=f"<think>{WORDS}</think>\n{WORDS}\n```python\n{code}# {t.turn}\n```",
            code=f"{code}# {t.turn}\n",
            feedback=WORDS,
            verdict=replace(t.verdict, detail=WORDS, reason=WORDS, device=WORDS),
            reward_terms={WORDS: 0.5},
        ),
    )
    evil = replace(problem(0), problem_id=NAME, family=WORDS, source=f"# {WORDS}\n")
    records = [attempt(), evil, played, *samples(played, first_id=0)]
    await write_run(tmp_path / "evil-1", records)
    return RunPaths(tmp_path / "evil-1")


def assert_harmless(pilot: Pilot[None]) -> None:
    """No drawn text moves a cursor, reverses letters or acts when clicked."""
    screen = pilot.app.screen
    for strip in screen._compositor.render_strips():
        for segment in strip:
            assert segment.control is None
            bad = [c for c in segment.text if unicodedata.category(c) in ("Cc", "Cs")]
            assert not bad, repr(segment.text)
            assert "\u202e" not in segment.text
            action = (segment.style.meta if segment.style else {}).get("@click", "")
            assert "app.quit" not in str(action)
