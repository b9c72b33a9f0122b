"""Runs for tests of reports: made of records; one in which every text is an attack (HTML, styles,
escape sequences, formulas, chat tokens)."""

import dataclasses
from pathlib import Path

import anyio

from forge.records import AttemptEnd, Event, Metrics, Purpose, Status
from forge.store.layout import RunPaths
from tests.store.storefactory import (
    attempt,
    edit,
    evaluation,
    group,
    problem,
    timing,
    with_turns,
    write_run,
)


def make_run(root: Path, records: list, *, texts: str = "plain") -> RunPaths:
    """Writes a run of these records."""
    anyio.run(lambda: write_run(root, records, texts=texts))
    return RunPaths(root)


EVIL = (
    '<script>window.owned=1</script><img src=x onerror="window.owned=1"></pre></code></style>'
    "<style>body{display:none}</style>'\"><iframe src='https://example.org'>&lt;b&gt;{{ 7*7 }}"
    "{% include 'x' %}\x1b]52;c;aGk=\x07\x1b[2J \u202egnp.exe \x9b31m $\\frac{1}{0}$ <|im_end|>"
    " ]]> <!-- \ufffe \x00"
)


def hostile_records() -> list:
    """Two steps, an evaluation and a kernel, with hostile texts."""
    evil = dataclasses.replace(
        problem(0), problem_id=f"p{EVIL}", family=f"_{EVIL}", source=EVIL, entry_point=EVIL
    )
    out: list = [dataclasses.replace(attempt(), commit=EVIL, code_diff=f"+{EVIL}"), evil]
    out.append(Event(at=1_001.0, kind=EVIL, message=EVIL, data={"stage": 0}))
    part = {"num": 4, "pass_at_1": 0.25, "compile_rate": 0.75}
    hostile = evaluation(stage=f"eval{EVIL}")
    detail = {**hostile.detail, "by_family": {EVIL: part}}
    out.append(dataclasses.replace(hostile, detail=detail))
    for step in (1, 2):
        played = group(
            step, [[Status.CORRECT], [Status.WRONG]], problem_id=evil.problem_id, step=step,
            stage=0, speed=timing(1.0 + step), purpose=Purpose.TRAIN,
        )  # fmt: skip
        verdict = {"reason": EVIL, "detail": EVIL, "phase_s": {EVIL: 1.0}}
        texts = {"completion_text": EVIL, "feedback": EVIL, "code": f"x = 1  # {EVIL}\n{EVIL}"}
        out.append(
            with_turns(
                played,
                lambda t, texts=texts, verdict=verdict: dataclasses.replace(
                    t, **texts, verdict=dataclasses.replace(t.verdict, **verdict)
                ),
            )
        )
        part = EVIL.replace("/", "").replace("\0", "")
        values = {f"train/kl_{part}/mean": 0.1 * step, "step/wall/seconds": 1.0}
        values[f"idle/{part}/seconds"] = 0.5
        out.append(Metrics(stage=0, step=step, at=1_010.0 + step, values=values))
    out.append(AttemptEnd(attempt=1, ended_at=1_051.0, exit_code=4, reason=EVIL))
    return out


def write_hostile_run(root: Path) -> RunPaths:
    """Writes the run; its experiment is hostile too, and no TOML."""
    anyio.run(lambda: write_run(root, hostile_records()))
    edit(root / "run.db", "UPDATE runs SET experiment = ?", f"name = '''{EVIL}'''")
    return RunPaths(root)
