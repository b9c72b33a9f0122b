"""Judges honest kernels and attacks, by this checkout's judge and by another's beside it.

    python -m bench.two_questions corpus [--device cuda]         # the honest corpus
    python -m bench.two_questions corpus zoo --attacks DIR --honest DIR --old ../main --sample 40

A DIR has `NAME.problem.py` and, for each answer, `NAME__WHAT.py`. Each line of `--out` is a
verdict; those that are there are not judged again. Prints what is not as it should be, and sums.
Exit code 1 if less than 97 % of the honest kernels are correct.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import forge

MIN_SHARE = 0.97
Case = dict[str, Any]


def cases(given: argparse.Namespace) -> list[Case]:
    """Name, group, problem and answer of all sets, `given.sample` of each."""
    from tests.corpus import corpus
    from tests.zoo import animals

    found = defaultdict[tuple[str, bool], list[tuple[str, str, str]]](list)
    if "corpus" in given.sets:
        found["corpus", True] += [(o.name, o.problem, o.candidate) for o in corpus.load()]
    for kind in ("cheats", "honest") if "zoo" in given.sets else ():
        found[f"zoo/{kind}", kind == "honest"] += [
            (o.name, o.problem, o.code) for o in animals.load(kind) if given.device in o.devices
        ]
    for folder in (*given.attacks, *given.honest):
        found[folder.name, folder in given.honest] += [
            (o.stem, (folder / f"{o.name.split('__')[0]}.problem.py").read_text(), o.read_text())
            for o in sorted(folder.glob("*__*.py"))
        ]
    return [
        {"group": group, "is_honest": is_honest, "name": name, "problem": problem, "code": code}
        for (group, is_honest), each in found.items()
        for name, problem, code in each[:: max(1, len(each) // given.sample)][: given.sample]
    ]


def judge_here(terms: dict[str, Any], asked: list[Case]) -> None:
    """Prints a verdict of this process's judges in a line for each case."""
    with forge.judges(**terms) as pool:
        verdicts = pool.judge_many([(one["problem"], one["code"]) for one in asked], timed=False)
        for case, one in zip(asked, verdicts, strict=True):
            row = {name: case[name] for name in ("group", "is_honest", "name")}
            row |= {"status": one.status, "reason": one.reason, "detail": one.detail}
            row |= {"evidence": getattr(one, "evidence", ""), "phase_s": one.phase_s}
            print(json.dumps(row), flush=True)


def judge_in(checkout: Path, asked: list[Case], given: argparse.Namespace) -> None:
    """Appends the verdicts of a checkout's judges to `given.out`."""
    terms = {"device": given.device, "workers": given.processes if given.device == "cpu" else None}
    with given.out.open("a") as out, subprocess.Popen(
        [checkout / ".venv/bin/python", __file__, "--judge"], cwd=checkout, text=True,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as child:  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        with child.stdin as sent:
            json.dump([terms, asked], sent)
        for line in child.stdout:
            out.write(json.dumps({"side": str(checkout), **json.loads(line)}) + "\n")
            out.flush()
    if child.returncode:
        raise SystemExit(child.returncode)


def rows_of(path: Path, asked: list[Case]) -> dict[tuple[str, str, str], Case]:
    """Verdicts on what is asked, by side, group and name."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    names = {(one["group"], one["name"]) for one in asked}
    found = {(row["side"], row["group"], row["name"]): row for row in rows}
    return {key: row for key, row in found.items() if key[1:] in names}


def main() -> int:
    """Judges by both checkouts, and compares."""
    if sys.argv[1:] == ["--judge"]:
        judge_here(*json.load(sys.stdin))
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="*", help="corpus, zoo")
    parser.add_argument("--attacks", type=Path, nargs="*", default=[])
    parser.add_argument("--honest", type=Path, nargs="*", default=[])
    parser.add_argument("--old", type=Path, help="another checkout, with its .venv")
    parser.add_argument("--new", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--sample", type=int, default=sys.maxsize, help="cases of each set")
    parser.add_argument("--out", type=Path, default=Path("two_questions.jsonl"))
    given = parser.parse_args()
    asked, right = cases(given), Counter[tuple[str, str]]()
    sides = [str(one.resolve()) for one in (given.old, given.new) if one is not None]
    for side in sides:
        known = rows_of(given.out, asked)
        left = [one for one in asked if (side, one["group"], one["name"]) not in known]
        if left:
            judge_in(Path(side), left, given)
    rows = rows_of(given.out, asked)
    for case in asked:
        found = [rows[side, case["group"], case["name"]] for side in sides]
        are_right = [(one["status"] == "correct") == case["is_honest"] for one in found]
        right.update((case["group"], s) for s, good in zip(sides, are_right, strict=True) if good)
        if not all(are_right):
            said = [f"{one['status']}/{one['reason']} {one['evidence']}" for one in found]
            print(
                f"{case['group']:11} {case['name']:56}",
                *said,
                " ".join(found[-1]["detail"].split())[:99],
                sep=" | ",
            )
    for group, num in Counter(one["group"] for one in asked).items():
        print(
            group, "right:", ", ".join(f"{right[group, side]} of {num} ({side})" for side in sides)
        )
    honest = [rows[sides[-1], one["group"], one["name"]] for one in asked if one["is_honest"]]
    num_correct = sum(one["status"] == "correct" for one in honest)
    return 0 if num_correct >= MIN_SHARE * len(honest) else 1


if __name__ == "__main__":
    sys.exit(main())
