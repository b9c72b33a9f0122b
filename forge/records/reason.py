"""The ends of a judgement: `Status`, and `Reason` in detail.

`Verdict.reason` is a `str`, since stored verdicts may hold codes of other versions of the judge;
every code of this version is a `Reason`. `policy_of` has the consequences for the judge; a reason
that is not listed, such as one of another version of the judge, has those of its status.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """The stage at which a candidate failed, or `correct`."""

    CORRECT = "correct"
    """Every checked output agrees with the reference."""
    WRONG = "wrong"
    """It ran, and an output differs in shape, type or value."""
    COMPILE_ERROR = "compile_error"
    """Python or Triton refuses the source."""
    RUNTIME_ERROR = "runtime_error"
    """It raised, crashed or ran out of memory."""
    TIMEOUT = "timeout"
    """A phase exceeded its deadline."""
    REJECTED = "rejected"
    """No usable answer, or one that breaks the rules (reason says which)."""
    UNJUDGEABLE = "unjudgeable"
    """The problem cannot be judged (reason says why). Never scored, masked from the gradient."""
    INFRA_ERROR = "infra_error"
    """Our fault or the machine's. Never scored, masked from the gradient."""

    @property
    def is_scored(self) -> bool:
        """True if it says something about the candidate, so that a reward may be computed."""
        return self not in (Status.UNJUDGEABLE, Status.INFRA_ERROR)


class Reason(StrEnum):
    """Stable code of why a judgement ended.

    A parameter follows the code after a colon: `deadline:correct` is DEADLINE in phase `correct`.
    """

    OK = "ok"
    """Correct."""

    # No candidate in the completion (forge.data.answers).
    NO_CODE_BLOCK = "no_code_block"
    """No complete fenced code block."""
    NO_ENTRY_POINT = "no_entry_point"
    """Nothing has the required name."""
    CUDA_SOURCE = "cuda_source"
    """C++ or CUDA C++, which is not judged."""
    UNCLOSED_THINKING = "unclosed_thinking"
    """The thinking never ends, so there is no answer."""

    # The source, before it runs.
    TOO_LONG = "too_long"
    """The source exceeds the size limit."""
    SYNTAX_ERROR = "syntax_error"
    """Python cannot parse the source."""

    # The candidate fails.
    NOT_TRITON = "not_triton"
    """Triton cannot compile a kernel."""
    IMPORT_ERROR = "import_error"
    """The module raises while it is imported."""
    EXCEPTION = "exception"
    """Constructor or forward raises."""
    OUT_OF_BOUNDS = "out_of_bounds"
    """A kernel reads or writes outside its tensors."""
    OUT_OF_MEMORY = "out_of_memory"
    """It needs more memory than the judge grants."""
    OUT_OF_RESOURCES = "out_of_resources"
    """A kernel needs more shared memory or registers than the GPU has."""
    GPU_FAULT = "gpu_fault"
    """The driver ended the executor's context, mostly for an illegal memory access."""
    CRASH = "crash"
    """Its process ended, or closed its channel."""
    KILLED = "killed"
    """Its process was killed on each of two judges."""
    DEADLINE = "deadline"
    """A phase exceeded its deadline; the parameter names the phase."""

    # The output is wrong.
    MISMATCH = "mismatch"
    """Values outside the tolerance."""
    PRECISION = "precision"
    """The same function as the reference, but it loses more than its precision allows."""
    SHAPE = "shape"
    """Number, shape or type of the outputs."""
    RACE = "race"
    """Programs of a launch race, and the output depends on their order."""
    UNINITIALISED = "uninitialised"
    """The output depends on memory that nothing has written."""
    STATEFUL = "stateful"
    """An output that depends on earlier calls, or is wrong in the first call alone."""
    PARAMS_CACHED_IN_INIT = "params_cached_in_init"
    """The constructor keeps what is computed of parameters, or an answer for inputs to come."""
    OUTPUT_NOT_WRITTEN = "output_not_written"
    """An output that the kernel left untouched."""
    INPUTS_MODIFIED = "inputs_modified"
    """It changes an input that it does not return, and the reference does not."""

    # The candidate breaks the rules.
    NO_KERNEL_LAUNCH = "no_kernel_launch"
    """No Triton kernel is launched."""
    DECOY_KERNEL = "decoy_kernel"
    """An output that does not come out of the candidate's kernels."""
    UNSUPPORTED = "unsupported"
    """It does something that a program cannot express, or exceeds a program's bounds."""
    TORCH_WORK = "torch_work"
    """torch does more of the work than is allowed."""
    STATIC_CHECK = "static_check"
    """The static check of another protocol (kernelbench) refuses the source."""
    FORGED_FRAME = "forged_frame"
    """It wrote to the channel between the judge and its process."""

    # The problem cannot be judged.
    REFERENCE_FAILED = "reference_failed"
    """The problem's own module fails, is random or ill-conditioned, or takes too long."""
    PROBLEM_TOO_LARGE = "problem_too_large"
    """Inputs, parameters and outputs of the problem need more memory than the judge has."""
    CONSTANT = "constant"
    """No output of the reference depends on any input: a kernel may write what it knows."""

    # The machinery failed.
    JUDGE_BUG = "judge_bug"
    """The judge raised."""
    BAD_REQUEST = "bad_request"
    """The judge refused the request."""
    RUNNER_KILLED = "runner_killed"
    """SIGKILL ended the candidate's process: an operator, the kernel, or its own limits."""
    MACHINE_BUSY = "machine_busy"
    """The machine had no core for the candidate's process, for longer than its deadline."""
    GPU_BUSY = "gpu_busy"
    """No turn on the GPU within the deadline."""
    GPU_MEMORY = "gpu_memory"
    """No memory on the GPU for the judge's tensors."""
    GPU_UNAVAILABLE = "gpu_unavailable"
    """The candidate's process could not open a context on the GPU."""
    GPU_LOST = "gpu_lost"
    """The judge's own context on the GPU failed."""
    WEAK_SANDBOX = "weak_sandbox"
    """The sandbox is weaker than required."""
    ZYGOTE_GONE = "zygote_gone"
    """The process that forks candidates ended."""
    JUDGE_LOST = "judge_lost"
    """The judge did not answer."""
    NO_JUDGE = "no_judge"
    """No judge became available in time."""

    @classmethod
    def of(cls, code: str) -> Reason | None:
        """The member of a stored code, without its parameter; None if it is unknown."""
        try:
            return cls(code.partition(":")[0])
        except ValueError:
            return None


class Cause(StrEnum):
    """Origin of a verdict that is not scored: which judges it counts against."""

    JUDGE = "judge"
    """The judge or its GPU: it is blamed."""
    CROWD = "crowd"
    """The judge's other requests on the same GPU; without any, the judge."""
    SUBJECT = "subject"
    """The problem or the candidate."""
    OUTSIDE = "outside"
    """Another process of this machine."""


_CAUSES: dict[Reason | None, Cause] = {
    Reason.JUDGE_BUG: Cause.SUBJECT,
    Reason.BAD_REQUEST: Cause.SUBJECT,
    Reason.GPU_BUSY: Cause.OUTSIDE,
    Reason.MACHINE_BUSY: Cause.OUTSIDE,
    Reason.RUNNER_KILLED: Cause.OUTSIDE,
    Reason.GPU_MEMORY: Cause.CROWD,
    Reason.GPU_UNAVAILABLE: Cause.CROWD,
}
"""Infra errors with another origin than the judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Consequences of a verdict for the judge that gave it."""

    cause: Cause | None = None
    """Origin of a verdict that is not scored; None for a verdict on the candidate."""

    def is_blamed(self, *, others_run: bool) -> bool:
        """True if it counts against the judge. `others_run`: other requests ran on its GPU."""
        return self.cause is Cause.JUDGE or (self.cause is Cause.CROWD and not others_run)


def policy_of(status: Status, code: str) -> Policy:
    """The policy of a verdict."""
    if status is Status.INFRA_ERROR:
        return Policy(cause=_CAUSES.get(Reason.of(code), Cause.JUDGE))
    return Policy(cause=Cause.SUBJECT if status is Status.UNJUDGEABLE else None)
