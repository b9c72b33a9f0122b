"""Measures what the judge's input sets find, and whom they refuse.

    .venv/bin/python bench/detection.py [--num 10] [--kernelbench DIR] [--precision bf16] [--json]

First table: wrong answer × input set → share of draws in which the set finds it. Second: references
computed in another order of operations (tests/evalpool/numbers/other_order.py), which no set may
refuse; with --kernelbench also those of a checkout of KernelBench, at sizes for a CPU. All values
are torch's, in this process: no kernel runs. Exit code 1 if a wrong answer passed a whole draw or
an honest one was refused.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import re
import sys
import types
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from forge.evalpool.judge.numbers.called import Unjudgeable, flatten  # noqa: E402
from forge.evalpool.judge.numbers.inputs.given import DTYPES  # noqa: E402
from tests.evalpool.numbers.drawn import Drawn, draw  # noqa: E402
from tests.evalpool.numbers.other_order import OtherOrder  # noqa: E402
from tests.evalpool.numbers.references import REFERENCES  # noqa: E402
from tests.evalpool.numbers.test_detection import made  # noqa: E402
from tests.evalpool.numbers.wrong_answers import WRONG, Wrong  # noqa: E402

ALL_SETS = 7
"""Every variant is among so many."""
LARGE = re.compile(r"^(\w+) = (\d+)\b", re.MULTILINE)
LIMITS = (("batch", 4), ("height", 20), ("width", 20), ("depth", 8), ("", 64))
"""Largest sizes on a CPU, by a part of their name."""


def wrong_rows(num: int) -> Iterator[tuple[str, int, dict[str, str]]]:
    """Wrong answer, draws in which four sets found it, and by variant how often it did."""
    for wrong in WRONG:
        shown: dict[str, list[bool]] = defaultdict(list)
        num_found = 0
        for _ in range(num):
            reference = wrong.reference() if wrong.is_model else wrong.reference
            terms: Any = {"precision": wrong.precision, "is_tf32": wrong.is_tf32}
            drawn = draw(reference, wrong.inputs, num_sets=ALL_SETS, **terms)
            found = _refusals(wrong, drawn)
            four = [one.variant for one in drawn.sets][: 5 if wrong.is_tf32 else 4]
            num_found += any(name in found for name in four)
            for name in {one.variant for one in drawn.sets}:
                shown[name].append(name in found)
        yield wrong.name, num_found, {k: f"{sum(v)}/{len(v)}" for k, v in shown.items()}


def _refusals(wrong: Wrong, drawn: Drawn) -> dict[str, str]:
    def answer(*inputs: Any) -> Any:
        return wrong.answer(drawn.model, *inputs) if wrong.is_model else wrong.answer(*inputs)

    with torch.no_grad():
        return drawn.refusals(answer)


def honest_row(
    reference: Any, inputs: Any, precision: str
) -> tuple[dict[str, str], bool, Counter[str]]:
    """Refusals of another order, whether a bit differed, and the variants of the sets."""
    model = made(reference)
    if isinstance(model, torch.nn.Module) and precision != "fp32":
        model = model.to(DTYPES[precision])
    drawn = draw(model, inputs, num_sets=ALL_SETS, precision=precision)

    def answer(*given: Any) -> Any:
        with torch.no_grad(), OtherOrder():
            return copy.deepcopy(drawn.model)(*given)

    pairs = [
        (a, b)
        for one in drawn.sets
        for a, b in zip(flatten(answer(*copy.deepcopy(one.inputs))), one.outputs, strict=False)
    ]
    differs = any(not torch.equal(a, b) for a, b in pairs)
    return drawn.refusals(answer), differs, Counter(one.variant for one in drawn.sets)


def kernelbench(folder: Path) -> Iterator[tuple[str, Any, Any]]:
    """References of levels 1 to 3 at sizes for a CPU."""
    for path in sorted(folder.glob("level[123]/*.py")):
        source = LARGE.sub(_smaller, path.read_text())
        module = types.ModuleType("problem")
        try:
            exec(source, module.__dict__)
            model = module.Model(*module.get_init_inputs())
            with torch.no_grad():
                model(*module.get_inputs())
        except Exception as error:
            print(f"left out {path.stem}: {type(error).__name__}: {str(error)[:60]}")
            continue
        yield f"{path.parent.name}/{path.stem}", model, module.get_inputs


def _smaller(found: re.Match[str]) -> str:
    name, value = found[1].lower(), int(found[2])
    limit = next(limit for part, limit in LIMITS if part in name)
    return f"{found[1]} = {min(value, limit)}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--num", type=int, default=10, help="draws of each")
    parser.add_argument("--kernelbench", type=Path, metavar="DIR", help="a checkout's KernelBench/")
    parser.add_argument("--precision", choices=DTYPES, default="fp32", help="of honest answers")
    parser.add_argument("--skip", choices=("wrong", "honest"), nargs="*", default=[])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    wrong = [] if "wrong" in given.skip else list(wrong_rows(given.num))
    for name, num_found, by_set in wrong:
        cells = "  ".join(f"{key} {value}" for key, value in sorted(by_set.items()))
        print(f"{num_found}/{given.num}  {name:<52} {cells}")
    cases = [] if "honest" in given.skip else [one for one in REFERENCES for _ in range(given.num)]
    more = kernelbench(given.kernelbench) if given.kernelbench is not None else ()
    num, num_left_out, refused, num_differing, fallen = 0, 0, [], 0, Counter()
    for name, reference, inputs in itertools.chain(cases, more):
        try:
            found, differs, variants = honest_row(reference, inputs, given.precision)
        except (Unjudgeable, NotImplementedError, RuntimeError) as error:
            num_left_out += 1
            print(f"left out {name}: {type(error).__name__}: {str(error)[:80]}", flush=True)
            continue
        num, num_differing = num + 1, num_differing + differs
        if variants["given"] > 1:
            fallen[name] += 1
        if found:
            refused.append(name)
            print(f"REFUSED {name}: {found}", flush=True)
    print(f"{num} honest, {num_differing} with other bits, {len(refused)} refused")
    print(f"{num_left_out} honest left out: their reference cannot be drawn or run")
    print(f"{len(fallen)} references got given inputs for another set: {dict(fallen)}")
    if given.json:
        print(json.dumps({"wrong": wrong, "honest": num, "refused": refused}))
    sys.exit(int(bool(refused) or any(num_found < given.num for _, num_found, _ in wrong)))


if __name__ == "__main__":
    main()
