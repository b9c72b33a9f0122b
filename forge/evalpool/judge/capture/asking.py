"""Questions of a capture to the judge: values that the host reads, facts of compiled kernels.

Each question carries the program as far as it is known, so that the judge needs nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from forge.evalpool.judge.capture.failures import Unsupported
from forge.evalpool.judge.program.questions import MAX_VALUES

if TYPE_CHECKING:
    from forge.evalpool.judge.capture.recorder import Recorder
    from forge.evalpool.judge.program.format import Program, Scalar


class Ask(Protocol):
    """Puts a question to the judge and waits for its answer."""

    def __call__(self, kind: str, body: dict[str, Any], program: Program) -> Any:
        """
        Args:
            kind: `value` or `kernel`.
            body: For `value`, `{}`: the answer is a list with a number for each of the program's
                outputs, tensors of one element. For `kernel`, `{"kernel": number}`: the answer is a
                dict with `n_regs`, `n_spills`, `n_max_threads` and `shared` (bytes).
            program: The prefix: nodes until now.
        """
        ...


class Asking:
    """The questions of one capture, counted."""

    def __init__(self, ask: Ask | None) -> None:
        self._ask = ask
        self.num_values = 0
        """Values read since `num_values` was last reset."""
        self.prefix: Any = None
        """Makes the program until now from the numbers of its outputs; set by the session."""

    def values(self, recorder: Recorder, tensors: list[int]) -> list[Scalar]:
        """Raises Unsupported without a judge that answers, or past the limit."""
        self.num_values += len(tensors)
        if self.num_values > MAX_VALUES:
            raise Unsupported(f"more than {MAX_VALUES} values of tensors read on the host")
        if self._ask is None:
            raise Unsupported(
                "a value of a tensor read on the host: compute on the device, without .item(),"
                " bool() or .cpu()"
            )
        answers = self._ask("value", {}, self.prefix(outputs=tensors, kernel=None))
        return [
            _typed(answer, recorder.tensors[number].dtype)
            for answer, number in zip(answers, tensors, strict=True)
        ]

    def facts(self, kernel: int) -> dict[str, int]:
        """Registers and memory of a compiled kernel. Raises Unsupported without a judge."""
        if self._ask is None:
            raise Unsupported(
                "registers or shared memory of a compiled kernel: choose the grid without them"
            )
        program = self.prefix(outputs=[], kernel=kernel)
        answer = self._ask("kernel", {"kernel": 0}, program)
        return {str(name): int(value) for name, value in answer.items()}


def _typed(answer: Any, dtype: str) -> Scalar:
    if dtype == "bool":
        return bool(answer)
    return int(answer) if "int" in dtype else float(answer)
