"""Counts generated problems that accept an answer which omits work: a constant, the input, a part
of the output, a chain without one of its steps.

    .venv/bin/python bench/lazy_answers.py [--num 3200] [--seed 1] [--families all]
        [--dtypes fp32 bf16] [--json]

Input sets, tolerances and comparison are the judge's own. The answers are made with torch, in this
process: this checks their values only, not the judge's other means (no kernel, work done by torch,
an output left over). Takes half a minute on one core.
"""

from __future__ import annotations

import argparse
import json
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from forge.config.schema import JudgeTable, ProblemsTable
from forge.data.generator import Composition, generate_problems, sizes_of
from forge.evalpool.judge.channel.shm import TensorSpec
from forge.evalpool.judge.numbers.called import dtype_name
from forge.evalpool.judge.numbers.compare import Expected, mismatch
from forge.evalpool.judge.numbers.input_set import InputSet
from forge.evalpool.judge.numbers.inputs import parameters
from forge.evalpool.judge.numbers.inputs.given import Terms
from forge.evalpool.judge.numbers.inputs.input_sets import make_sets

if TYPE_CHECKING:
    from forge.records import Problem

TERMS = Terms(precision="fp32", device="cpu", is_tf32=False, max_bytes=1 << 30, is_plain=False)
NUM_COLUMNS = 8
NUM_SHOWN = 5

Make = Callable[[InputSet], torch.Tensor]
"""An answer to one input set."""


class Drawn:
    """One draw of a problem's inputs, and the outputs that the judge expects."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.module, self.model = load(problem.source)
        parameters.move(self.model)
        self.terms = replace(TERMS, precision=problem.precision)
        self.sets = self.draw(JudgeTable().num_inputs)
        self.expected = [_expected(one, problem.precision) for one in self.sets]

    def draw(self, num_sets: int) -> list[InputSet]:
        return make_sets(self.module, self.model, num_sets=num_sets, terms=self.terms)

    def takes(self, make: Make) -> bool:
        """True if an answer is accepted on every input set."""
        return all(_is_right(make(one), e) for one, e in zip(self.sets, self.expected, strict=True))

    def takes_a_constant(self, *, is_scalar: bool) -> bool:
        """True if one constant, known in advance, is accepted on all input sets."""
        low = np.max([one.values - one.allowed for one in self.expected], axis=0)
        high = np.min([one.values + one.allowed for one in self.expected], axis=0)
        return bool(low.max() <= high.min() if is_scalar else (low <= high).all())


def load(source: str) -> tuple[Any, Any]:
    module = types.ModuleType("problem")
    exec(source, module.__dict__)
    return module, module.Model(*module.get_init_inputs())


def lazy_answers(drawn: Drawn) -> Iterator[tuple[str, bool]]:
    """Pairs of the omitted work and whether the answer was accepted."""
    yield "any one number", drawn.takes_a_constant(is_scalar=True)
    yield "any constant tensor", drawn.takes_a_constant(is_scalar=False)
    (fresh,) = drawn.draw(1)
    yield "the answer to other inputs", drawn.takes(lambda _: fresh.outputs[0])
    yield "the input", drawn.takes(lambda one: one.inputs[0])
    yield "half of the output, the rest 0", drawn.takes(_half)
    few = f"the last {NUM_COLUMNS} columns of the input taken for 0"
    yield few, drawn.takes(lambda one: drawn.model(_cut(one.inputs[0]), *one.inputs[1:]))
    untrained = load(drawn.problem.source)[1]
    if untrained.state_dict():
        yield "parameters as they are made", drawn.takes(lambda one: untrained(*one.inputs))
    for place, model in _without_a_step(drawn):
        yield place, drawn.takes(lambda one, model=model: model(*one.inputs))


def _half(one: InputSet) -> torch.Tensor:
    output = one.outputs[0].clone().flatten()
    output[output.numel() // 2 :] = 0
    return output.view(one.outputs[0].shape)


def _cut(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[..., -NUM_COLUMNS:] = 0
    return x


def _without_a_step(drawn: Drawn) -> Iterator[tuple[str, Any]]:
    made = Composition.of(drawn.problem)
    last = len(made.chain) - 1
    for i in range(len(made.chain)):
        # A chain has a step at least: one that is rendered as none stands for an empty one.
        chain = made.chain[:i] + made.chain[i + 1 :] or ("relu",)
        source = replace(made, chain=chain).source(sizes_of(drawn.problem))
        if not last:
            assert "torch.relu(x)" in source
            source = source.replace("torch.relu(x)", "x")
        model = load(source)[1]
        model.load_state_dict(drawn.model.state_dict())
        place = "only" if not last else "first" if not i else "last" if i == last else "middle"
        yield f"the {place} step of a chain", model


def _expected(one: InputSet, precision: str) -> Expected:
    output, error = (each[0].contiguous() for each in (one.outputs, one.errors))
    spec = TensorSpec(dtype_name(output), tuple(output.shape))
    return Expected.make(spec, _bytes(output), error=_bytes(error), precision=precision)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def _is_right(got: torch.Tensor, expected: Expected) -> bool:
    if got.numel() != expected.values.size:
        return False
    return mismatch(expected, _bytes(got.to(getattr(torch, expected.spec.dtype)))) is None


def count(problems: list[Problem]) -> dict[str, tuple[int, list[str]]]:
    """By omitted work: number of problems tried, and ids of those that accepted the answer."""
    found: dict[str, tuple[int, list[str]]] = {}
    for problem in problems:
        is_taken: dict[str, bool] = {}
        with torch.no_grad():
            for kind, is_right in lazy_answers(Drawn(problem)):
                is_taken[kind] = is_taken.get(kind, False) or is_right
        for kind, is_right in is_taken.items():
            num, ids = found.get(kind, (0, []))
            found[kind] = (num + 1, [*ids, problem.problem_id] if is_right else ids)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--num", type=int, default=3200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--families", nargs="+", default=["basic"])
    parser.add_argument("--dtypes", nargs="+", default=["fp32"])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = ("families", "dtypes")
    table = {"num_problems": given.num, **{name: getattr(given, name) for name in names}}
    found = count(generate_problems(ProblemsTable.model_validate(table), seed=given.seed))
    if given.json:
        print(json.dumps(found))
        return
    for kind, (num, ids) in found.items():
        print(f"{kind:<45} taken by {len(ids)} of {num}  {', '.join(ids[:NUM_SHOWN])}")


if __name__ == "__main__":
    main()
