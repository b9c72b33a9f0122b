"""Times the alternatives of a program's choices and fixes the fastest of each.

Called by `child.py`, alone on the card, on inputs that the judge drew. An alternative that does
not compile, load or launch is skipped with its reason, as Triton's autotuner skips it.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.execute.call import ChoiceReport
from forge.evalpool.judge.execute.gpu.run import CannotRun, Loaded, Step, reason_of
from forge.evalpool.judge.program.format import Choice, Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.evalpool.judge.execute.call import Call
    from forge.evalpool.judge.execute.gpu.exchange import Exchange

NUM_RUNS = 5
"""Timed runs of each alternative, after one that is not."""
MAX_REASON = 500


class Tuner:
    """Tunes one loaded program."""

    def __init__(self, loaded: Loaded, exchange: Exchange) -> None:
        self._loaded, self._exchange = loaded, exchange
        self._found: list[ChoiceReport] = []

    def tune(self, call: Call) -> list[ChoiceReport]:
        """Fixes every choice of the program, in its order; one that the program fixed stays.

        Raises CannotRun where no alternative of a choice runs; else as `Loaded.run`.
        """
        self._exchange.prepare(call)
        for section in (Section.INIT, Section.FORWARD):
            self._loaded.begin(section)
            with self._loaded.torch_memory():
                self._walk(self._loaded.steps_of(section))
        return self._found

    def _walk(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if not isinstance(step.node, Choice):
                self._loaded.step(step)
                continue
            if step.chosen is None:
                self._choose(step)
            assert step.chosen is not None
            self._walk(step.alternatives[step.chosen])

    def _choose(self, step: Step) -> None:
        assert isinstance(step.node, Choice)
        times: list[float | None] = []
        reasons: list[str] = []
        for alternative, steps in zip(step.node.alternatives, step.alternatives, strict=True):
            times.append(None)
            if reason := reason_of(steps):
                reasons.append(reason)
                continue
            try:
                times[-1] = self._timed(steps, alternative.restored)
            except CannotRun as error:
                reasons.append(str(error)[:MAX_REASON])
        able = {number: us for number, us in enumerate(times) if us is not None}
        if not able:
            words = f"no configuration runs: {'; '.join(reasons[:3])}"
            raise CannotRun("out_of_resources", words, line=step.line)
        step.chosen = min(able, key=lambda number: able[number])
        found = ChoiceReport(step=step.number, chosen=step.chosen, times_us=tuple(times))
        self._found.append(found)

    def _timed(self, steps: Sequence[Step], restored: Sequence[int]) -> float:
        loaded, card = self._loaded, self._loaded.card
        tensors = [loaded.places.tensor(number) for number in restored]
        kept = [tensor.clone() for tensor in tensors]
        pairs: list[tuple[Any, Any]] = []
        for _ in range(NUM_RUNS + 1):
            start, end = card.event(), card.event()
            card.flush()
            start.record()
            for step in steps:
                loaded.step(step)
            end.record()
            for tensor, content in zip(tensors, kept, strict=True):
                tensor.copy_(content)
            pairs.append((start, end))
        loaded.synchronize(steps[0] if steps else None)
        return statistics.median(start.elapsed_time(end) * 1e3 for start, end in pairs[1:])
