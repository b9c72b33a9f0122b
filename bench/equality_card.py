"""The card's part of `bench.equality`: the judge on a GPU, which also notes what each call left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bench.equality_cases import CallRecord, Case
from forge.evalpool.judge.trial.gpu.layout import spec_of
from forge.evalpool.judge.trial.gpu.trial import GpuTrials
from forge.evalpool.judge.trial.trial import Decided

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from forge.evalpool.judge.trial.gpu.judgement import GpuJudgement
    from forge.evalpool.judge.trial.trial import Finding


class RecordingTrials(GpuTrials):
    """Judges as ever, after it has noted a call on each input set."""

    cases: dict[str, Case]
    """By the problem's id."""

    @classmethod
    def over(cls, trials: GpuTrials, cases: dict[str, Case]) -> RecordingTrials:
        """The same judge with its parts."""
        found = cls.__new__(cls)
        for name, value in vars(trials).items():
            setattr(found, name, value)
        found.cases = cases
        return found

    def _finding(self, judgement: GpuJudgement) -> Finding:
        case = self.cases[judgement.candidate.problem.problem_id]
        if not case.calls:
            record(judgement, case)
        return super()._finding(judgement)


def record(judgement: GpuJudgement, case: Case) -> None:
    """Runs a checked call on the first input sets and notes its outputs.

    Raises:
        Decided: the candidate fails before its first call.
    """
    judgement.prepare()
    reference, memory = judgement.reference, judgement.card
    case.parameters = {
        name: content(reference.tensors[index]) for name, index in reference.named.items()
    }
    with judgement.held(), judgement._turn(judgement.shared):
        for number in range(min(case.num_sets, len(reference.sets))):
            one = reference.sets[number]
            inputs = tuple(content(reference.tensors[index]) for index in one.inputs)
            try:
                judgement._call(number)
            except Decided as decided:
                case.failure = f"{one.variant}: {decided.finding.detail}"[:500]
                return
            assert judgement._loaded is not None
            memory.take()
            left = list(memory._left)
            specs = [spec_of(tensor) for tensor in left]
            case.calls.append(
                CallRecord(
                    variant=one.variant,
                    program=judgement._loaded.data,
                    inputs=inputs,
                    outputs=tuple(content(tensor) for tensor in left),
                    forms=tuple((spec.dtype, tuple(spec.shape)) for spec in specs),
                    changed=tuple(change.number for change in one.changed),
                    mismatch=(memory.mismatch(number) or "")[:500],
                )
            )


def content(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """The bytes of a tensor, on the host."""
    import torch

    flat = tensor.detach().contiguous().reshape(-1)
    return np.frombuffer(flat.view(torch.uint8).cpu().numpy().tobytes(), np.uint8)
