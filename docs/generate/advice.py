"""Advice on each reason of a verdict, and the statuses that it comes with."""

from __future__ import annotations

from dataclasses import dataclass

from forge.records.reason import Reason, Status


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice for one reason."""

    statuses: tuple[Status, ...]
    """Statuses of verdicts with this reason."""
    text: str


def _rejected(text: str) -> Advice:
    return Advice((Status.REJECTED,), text)


def _wrong(text: str) -> Advice:
    return Advice((Status.WRONG,), text)


def _runtime(text: str) -> Advice:
    return Advice((Status.RUNTIME_ERROR,), text)


def _infra(text: str) -> Advice:
    return Advice((Status.INFRA_ERROR,), text)


_AGAIN = "Nothing if it is rare."

ADVICE: dict[Reason, Advice] = {
    Reason.OK: Advice((Status.CORRECT,), "Nothing. Times, if there are any, follow in the report."),
    Reason.NO_CODE_BLOCK: _rejected(
        "End the answer with one fenced code block. Often the completion was cut off: raise "
        "`rollout.max_completion_tokens` (`v_turns.is_truncated`)."
    ),
    Reason.NO_ENTRY_POINT: _rejected(
        "Define the class or function that the prompt names: `ModelNew` for a class `Model`."
    ),
    Reason.CUDA_SOURCE: _rejected(
        "Write a Triton kernel in a Python module. If it is frequent, say in `prompt.system` that "
        "CUDA C++ is not judged."
    ),
    Reason.UNCLOSED_THINKING: _rejected(
        "Close the thinking before the answer. Often the completion was cut off; `prompt.thinking` "
        "must be the model's tag."
    ),
    Reason.TOO_LONG: _rejected("Write a shorter module; `detail` has the limit."),
    Reason.SYNTAX_ERROR: Advice((Status.COMPILE_ERROR,), "Correct the line that `detail` shows."),
    Reason.NOT_TRITON: Advice(
        (Status.COMPILE_ERROR,),
        "Read Triton's message: a name, type, shape or option that the kernel's language does not "
        'have. With `judge.compile = "binary"`, also what only the target\'s compiler refuses.',
    ),
    Reason.IMPORT_ERROR: Advice(
        (Status.COMPILE_ERROR,),
        "Let the module import only torch, triton, numpy and the standard library, and do no work "
        "that needs data at import.",
    ),
    Reason.EXCEPTION: _runtime(
        "Correct the line that `detail` shows. Arguments of the constructor and of `forward` are "
        "those of the reference."
    ),
    Reason.OUT_OF_BOUNDS: _runtime(
        "Add a mask to the load or store in the line that `detail` shows, or correct its offsets."
    ),
    Reason.OUT_OF_MEMORY: _runtime(
        "Allocate less. If the reference itself needs much, raise `judge.memory_bytes`."
    ),
    Reason.OUT_OF_RESOURCES: _runtime("Use smaller blocks, fewer stages or fewer warps."),
    Reason.GPU_FAULT: _runtime(
        "Look for an access out of bounds in the kernel that `detail` names. Judging on a CPU "
        "(`forge judge --device cpu`) finds the line and the element."
    ),
    Reason.CRASH: _runtime(
        "Do not end the process or close its files; look for a fault in native code."
    ),
    Reason.KILLED: _runtime("Look for memory without bound; two judges saw the same end."),
    Reason.DEADLINE: Advice(
        (Status.TIMEOUT,),
        "Look for a loop that does not end. The phases are `capture` and `load` "
        "(`judge.compile_timeout_s`), `correct` (`judge.correct_timeout_s`), `tune` and `time` "
        "(`judge.timing_timeout_s`).",
    ),
    Reason.MISMATCH: _wrong(
        "Compare with the first wrong element in `detail`. If all are off a little, accumulate in "
        "float32; beside a plant, handle large and unlike values, other signs, masks and indices."
    ),
    Reason.PRECISION: _wrong(
        "Accumulate in float32, and cast to half precision, or use TF32, only where the reference "
        "does."
    ),
    Reason.SHAPE: _wrong("Return as many tensors of the type and shape as the reference does."),
    Reason.RACE: _wrong(
        "Let each element be written by one program, or use atomics. Wait (`tl.debug_barrier`) "
        "before reading what the same program wrote, and read in a second launch what another one "
        "wrote."
    ),
    Reason.UNINITIALISED: _wrong(
        "Write every element that is read later: `torch.zeros`, or a mask with `other=`."
    ),
    Reason.STATEFUL: _wrong(
        "Compute every output from the arguments of the call; keep nothing between calls."
    ),
    Reason.PARAMS_CACHED_IN_INIT: _wrong(
        "Read parameters in `forward`, or prepare them in `__init__` by operations on the "
        "parameters themselves, so that they can be made again for other values."
    ),
    Reason.OUTPUT_NOT_WRITTEN: _wrong("Let the grid cover the whole output."),
    Reason.INPUTS_MODIFIED: _wrong("Write to a new tensor, or return the input written to."),
    Reason.NO_KERNEL_LAUNCH: _rejected("Launch a `@triton.jit` kernel in `forward`."),
    Reason.DECOY_KERNEL: _rejected(
        "Let every output come out of your kernels, and let every input that matters reach them."
    ),
    Reason.UNSUPPORTED: _rejected(
        "Write the line in another way; `detail` says how. Typical causes are reads of values on "
        "the host beyond the limit, an operation outside the table, CUDA streams and graphs, "
        "clusters, and inline assembly."
    ),
    Reason.TORCH_WORK: _rejected(
        "Move the operation that `detail` names into a kernel, or judge with "
        '`judge.policy = "hybrid"`, which lets torch compute too.'
    ),
    Reason.STATIC_CHECK: _rejected(
        'Write the source without what `detail` names; `judge.protocol = "forge"` allows it.'
    ),
    Reason.FORGED_FRAME: _rejected("Do not write to file descriptors that you did not open."),
    Reason.REFERENCE_FAILED: Advice(
        (Status.UNJUDGEABLE,),
        "`forge problems check` names the cause. Correct the problem's module, or raise "
        "`judge.correct_timeout_s` for a slow one.",
    ),
    Reason.PROBLEM_TOO_LARGE: Advice(
        (Status.UNJUDGEABLE,),
        "Use smaller sizes (`problems.overrides`, `--override`), or a judge with more memory.",
    ),
    Reason.CONSTANT: Advice(
        (Status.UNJUDGEABLE,),
        "Let an output depend on an input; `forge problems check` names such problems.",
    ),
    Reason.JUDGE_BUG: _infra("Report it with the judge's log: it is a fault of forge."),
    Reason.BAD_REQUEST: _infra(
        "Use one version of forge for the run and the judges of `judge.url`."
    ),
    Reason.RUNNER_KILLED: _infra(
        f"{_AGAIN} Else the machine has too little memory for `judge.workers`."
    ),
    Reason.MACHINE_BUSY: _infra(
        f"{_AGAIN} Else lower `judge.workers`, or end what else runs on the machine."
    ),
    Reason.GPU_BUSY: _infra("Find what holds the GPU: `forge ps`, `forge doctor`."),
    Reason.GPU_MEMORY: _infra(
        f"{_AGAIN} Else other roles or programs leave too little memory on the GPU."
    ),
    Reason.GPU_UNAVAILABLE: _infra(f"{_AGAIN} `forge doctor` tries the driver."),
    Reason.GPU_LOST: _infra(
        f"{_AGAIN} The judge is started again; see the driver's log (`dmesg`)."
    ),
    Reason.WEAK_SANDBOX: _infra(
        "`forge doctor` names the flag that the container or kernel lacks; `judge.isolation` "
        "may allow a weaker level."
    ),
    Reason.ZYGOTE_GONE: _infra(f"{_AGAIN} The judge is started again; its log has the cause."),
    Reason.JUDGE_LOST: _infra(f"{_AGAIN} The judge's log, or that of its machine, has the cause."),
    Reason.NO_JUDGE: _infra("See the state of the judges: `forge status`, `GET /v1/health`."),
}
