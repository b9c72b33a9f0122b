"""One candidate, judged: screen → sandbox → compile, first call → further inputs → ghost → verdict.

Called by `app.py` in a worker thread, several at once if the config says so. The judge's side of
the runner: it sends code and memory, waits under a deadline, reads what lies in the memory, and
kills. Promise: every way a candidate can end gives a verdict; what is our fault is `infra_error`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge import frames, words
from forge.evalpool.judge.compare import is_unwritten, mismatch
from forge.evalpool.judge.frames import Kind
from forge.evalpool.judge.proof import WeakSandbox
from forge.evalpool.judge.references import Reference, ReferenceFailed, References
from forge.evalpool.judge.screen import screen
from forge.evalpool.judge.shm import shared_memory
from forge.evalpool.judge.spawner import SandboxedChild, Spawner, ZygoteGone
from forge.records.verdict import JudgeOptions, Profile, Status, Timing, Verdict

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator

    from forge.config.schema import JudgeTable
    from forge.records.problem import Problem

NO_GPU_MARKS = (
    "Torch not compiled with CUDA enabled",
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
)
NO_GPU_LINES = ("is_cuda", '"cuda"', "'cuda'")
"""An assertion on a line that has one of these asks for a GPU."""
DERIVED_WORDS = (
    "parameters are loaded after __init__; define load_reference(self, state) for what you derive"
)
NO_GPU_WORDS = "there is no GPU here: do not ask for one, make tensors on x.device"
CORRECTNESS_ALONE = JudgeOptions(timing=False)
OUT_OF_MEMORY_MARKS = (
    "MemoryError",
    "can't allocate memory",
    "not enough memory",
    "Cannot allocate memory",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What every verdict of a judge carries."""

    isolation: str
    caps: str
    harness: str
    device: str = "cpu"


@dataclass(slots=True)
class Phases:
    """Seconds by phase of one judgement."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - started, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A verdict without its stamp."""

    status: Status
    reason: str
    detail: str = ""
    is_compiled: bool = False
    num_launches: int = 0
    timing: Timing | None = None
    profile: Profile | None = None


class Decided(Exception):
    """A candidate stops at the first stage it fails."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.reason)
        self.finding = finding


class Trials(ABC):
    """Judges candidates one at a time each; holds what they share."""

    def __init__(self, *, table: JudgeTable, spawner: Spawner, stamp: Stamp) -> None:
        self._table = table
        self._spawner = spawner
        self.stamp = stamp

    def judge(
        self,
        problem: Problem,
        code: str,
        *,
        uid: int | None,
        options: JudgeOptions = CORRECTNESS_ALONE,
    ) -> Verdict:
        """Blocks until the verdict, at most the sum of all deadlines. `uid` is the runner's own."""
        phases = Phases()
        try:
            finding = self._find(problem, code, uid=uid, phases=phases, options=options)
        except Decided as decided:
            finding = decided.finding
        except ReferenceFailed as error:
            finding = Finding(
                status=Status.INFRA_ERROR, reason="reference_failed", detail=str(error)
            )
        except WeakSandbox as error:
            finding = Finding(status=Status.INFRA_ERROR, reason="weak_sandbox", detail=str(error))
        except ZygoteGone as error:
            finding = Finding(
                status=Status.INFRA_ERROR,
                reason="zygote_gone",
                detail=words.without_paths(str(error)),
            )
        return self.stamped(finding, phases=phases)

    def stamped(self, finding: Finding, *, phases: Phases) -> Verdict:
        return Verdict(
            status=finding.status,
            reason=finding.reason,
            detail=words.clean(finding.detail),
            is_compiled=finding.is_compiled,
            num_launches=finding.num_launches,
            timing=finding.timing,
            profile=finding.profile,
            isolation=self.stamp.isolation,
            caps=self.stamp.caps,
            device=self.stamp.device,
            harness=self.stamp.harness,
            phase_s=dict(phases.seconds),
        )

    def _find(
        self,
        problem: Problem,
        code: str,
        *,
        uid: int | None,
        phases: Phases,
        options: JudgeOptions,
    ) -> Finding:
        entry_point = f"{problem.entry_point}New"
        with phases.timed("screen"):
            screening = screen(code, entry_point=entry_point)
        if not screening.is_ok:
            status = Status.COMPILE_ERROR if screening.is_compile_error else Status.REJECTED
            return Finding(status=status, reason=screening.reason, detail=screening.detail)
        return self._run(problem, code, uid=uid, phases=phases, options=options)

    @abstractmethod
    def _run(
        self,
        problem: Problem,
        code: str,
        *,
        uid: int | None,
        phases: Phases,
        options: JudgeOptions,
    ) -> Finding:
        """Judges a source that passed the screen. Raises what `judge` makes a verdict of."""


class CpuTrials(Trials):
    """In Triton's interpreter."""

    def __init__(
        self, *, table: JudgeTable, spawner: Spawner, references: References, stamp: Stamp
    ) -> None:
        super().__init__(table=table, spawner=spawner, stamp=stamp)
        self._references = references

    def _run(
        self,
        problem: Problem,
        code: str,
        *,
        uid: int | None,
        phases: Phases,
        options: JudgeOptions,
    ) -> Finding:
        with phases.timed("reference"):
            reference = self._references.get(problem)
        with shared_memory(len(reference.image)) as (fd, memory):
            memory[:] = reference.image
            with phases.timed("sandbox"):
                child = self._spawner.spawn(role="runner", uid=uid)
            run = CpuRun(
                code=code,
                reference=reference,
                memory=memory,
                spawner=self._spawner,
                child=child,
                phases=phases,
                table=self._table,
            )
            try:
                return run.check(f"{problem.entry_point}New", fd=fd)
            finally:
                with phases.timed("end"):
                    run.end()


@dataclass(slots=True, kw_only=True)
class Run:
    """One runner from its first frame to its end; where its memory lies is the subclass's part."""

    code: str
    spawner: Spawner
    child: SandboxedChild
    phases: Phases
    table: JudgeTable
    is_compiled: bool = False
    num_launches: int = 0
    is_ended: bool = False

    def end(self) -> int:
        """Kills it. Answers how it had ended, once."""
        if self.is_ended:
            return 0
        self.is_ended = True
        return self.spawner.end(self.child)

    def _ask(
        self,
        kind: Kind,
        body: dict[str, Any],
        *,
        phase: str,
        left_s: float,
        limit_s: float,
        fds: tuple[int, ...] = (),
    ) -> frames.Frame:
        """Sends work and waits for it. Raises Decided for whatever went wrong.

        Args:
            left_s: Of the phase's `limit_s`, which is what a model is told.
        """
        try:
            frames.send(self.child.sock, kind, body, fds=fds, timeout_s=left_s)
            answer = frames.receive(
                self.child.sock,
                deadline=time.monotonic() + left_s,
                expected=(Kind.DONE, Kind.FAILED),
            )
        except frames.DeadlinePassed:
            detail = f"no answer within {limit_s:.3g} s: does a loop end?"
            raise Decided(self._finding(Status.TIMEOUT, f"deadline:{phase}", detail)) from None
        except frames.FrameError:
            detail = "something other than the runner wrote on its channel"
            raise Decided(self._finding(Status.REJECTED, "forged_frame", detail)) from None
        except frames.PeerGone:
            raise Decided(self._crashed(self.end())) from None
        if answer.kind is Kind.FAILED:
            raise Decided(self._failed(answer.body))
        return answer

    def _failed(self, body: dict[str, Any]) -> Finding:
        """A FAILED frame in the judge's words. Its content is the candidate's: only quoted."""
        stage, kind, message, line = (
            body.get(name) for name in ("stage", "type", "message", "line")
        )
        text = f"{kind}: {message}" if message else f"{kind}"
        source = (
            self.code.split("\n")[line - 1]
            if type(line) is int and 0 < line <= self.code.count("\n") + 1
            else ""
        )
        if stage == "compile":
            detail = words.at_line(self.code, line, f"Triton cannot compile {message}")
            return self._finding(Status.COMPILE_ERROR, "not_triton", detail)
        if _asks_for_gpu(text, source, kind):
            # Scored as what it is here: whether to ask for a GPU is the candidate's own choice.
            detail = words.at_line(self.code, line, f"{text}\n{NO_GPU_WORDS}")
            return self._finding(Status.RUNTIME_ERROR, "needs_gpu", detail)
        detail = words.at_line(self.code, line, text)
        if any(mark in text for mark in OUT_OF_MEMORY_MARKS):
            return self._finding(Status.RUNTIME_ERROR, "out_of_memory", detail)
        if kind == "OutOfBounds":
            return self._finding(Status.RUNTIME_ERROR, "out_of_bounds", detail)
        if stage == "import":
            return self._finding(Status.COMPILE_ERROR, "import_error", detail)
        return self._finding(Status.RUNTIME_ERROR, "exception", detail)

    def _crashed(self, status: int) -> Finding:
        return self._finding(Status.RUNTIME_ERROR, "crash", words.exit_in_words(status))

    def _finding(self, status: Status, reason: str, detail: str = "") -> Finding:
        return Finding(
            status=status,
            reason=reason,
            detail=detail,
            is_compiled=self.is_compiled,
            num_launches=self.num_launches,
        )


@dataclass(slots=True, kw_only=True)
class CpuRun(Run):
    """One runner whose tensors lie in a memfd, all input sets beside each other."""

    reference: Reference
    memory: mmap.mmap

    def check(self, entry_point: str, *, fd: int) -> Finding:
        body = {
            **self.reference.request,
            "code": self.code,
            "entry_point": entry_point,
            "depth": self.table.compile,
        }
        with self.phases.timed("compile"):
            limit_s = self.table.compile_timeout_s
            done = self._ask(
                Kind.CANDIDATE, body, fds=(fd,), phase="compile", left_s=limit_s, limit_s=limit_s
            )
        self.num_launches = count(done.body.get("num_launches"))
        deadline = time.monotonic() + self.table.correct_timeout_s
        with self.phases.timed("correct"):
            self._compare(done.body, call=0)
            for number in range(1, len(self.reference.expected)):
                self._compare(self._call(number, deadline=deadline), call=number)
        with self.phases.timed("evidence"):
            self._require_work(deadline=deadline)
        return self._finding(Status.CORRECT, "ok")

    def _call(self, number: int, *, deadline: float, is_ghost: bool = False) -> dict[str, Any]:
        slots = self.reference.slots[-1 if is_ghost else number]
        body = {"set": number, "slots": list(slots), "ghost": is_ghost}
        left_s = max(0.05, deadline - time.monotonic())
        limit_s = self.table.correct_timeout_s
        return self._ask(Kind.CALL, body, phase="correct", left_s=left_s, limit_s=limit_s).body

    def _compare(self, done: dict[str, Any], *, call: int) -> None:
        """Raises Decided unless call `call` left the right outputs and nothing else."""
        expected, slots = self.reference.expected[call], self.reference.slots[call]
        data = self.memory[:]  # a private copy: the runner still runs
        outputs = [self.reference.read(data, slot) for slot in slots]
        pairs = list(zip(expected, outputs, strict=True))
        is_written = not pairs or not all(is_unwritten(one, output) for one, output in pairs)
        if call == 0:
            self.is_compiled = is_written and self.num_launches > 0
        forms = [
            (spec.dtype, list(spec.shape)) for spec in map(self.reference.specs.__getitem__, slots)
        ]
        form = form_mismatch(done.get("outputs"), forms)
        if form is not None:
            raise Decided(self._finding(Status.WRONG, "shape", form))
        if self.num_launches == 0:
            detail = "forward launches no kernel of its own"
            raise Decided(self._finding(Status.REJECTED, "no_kernel_launch", detail))
        if not is_written:
            detail = "the output is all NaN: nothing was written to it, or every value is 0/0"
            raise Decided(self._finding(Status.WRONG, "output_not_written", detail))
        for number, (one, output) in enumerate(pairs):
            name = "output" if len(expected) == 1 else f"output {number}"
            found = mismatch(one, output, name=name)
            if found is not None and self.reference.request["state"] and done.get("has_derived"):
                detail = f"{found}\n{DERIVED_WORDS}"
                raise Decided(self._finding(Status.WRONG, "params_cached_in_init", detail))
            if found is not None:
                raise Decided(self._finding(Status.WRONG, "mismatch", found))
        end = self.reference.inputs_end
        if data[:end] != self.reference.image[:end]:
            detail = "forward changes its inputs; write to a new tensor"
            raise Decided(self._finding(Status.WRONG, "inputs_modified", detail))

    def _require_work(self, *, deadline: float) -> None:
        """Ghost replay: with launches doing nothing, the answer must not stay right.

        Any failure says that it does not: a loop may wait for ever for what a kernel computes.
        """
        try:
            self._call(0, deadline=deadline, is_ghost=True)
        except Decided as decided:
            if decided.finding.reason == "forged_frame":
                raise
            return
        data = self.memory[:]
        slots = self.reference.slots[-1]
        outputs = [self.reference.read(data, slot) for slot in slots]
        pairs = zip(self.reference.expected[0], outputs, strict=True)
        if all(mismatch(one, output) is None for one, output in pairs):
            detail = "the output does not depend on the kernel: it is computed elsewhere"
            self.is_compiled = False  # it launched, but wrote nothing that counts
            raise Decided(self._finding(Status.REJECTED, "decoy_kernel", detail))


def form_mismatch(outputs: Any, forms: list[tuple[str, list[int]]]) -> str | None:
    """What the runner says came out against the (dtype, shape) that must; its lie would leave a
    slot unwritten."""
    if not isinstance(outputs, list):
        return "forward returned nothing that can be read"
    if len(outputs) != len(forms):
        return f"forward returned {len(outputs)} outputs, expected {len(forms)}"
    for output, (dtype, shape) in zip(outputs, forms, strict=True):
        kind, got_dtype, got_shape = (
            output if isinstance(output, list) and len(output) == 3 else ("?", "", [])
        )
        if kind not in ("Tensor", "Parameter"):
            return f"forward returned {str(kind)[:40]}, expected a tensor"
        if got_shape != shape:
            return f"output shape is {str(got_shape)[:80]}, expected {shape}"
        if got_dtype != dtype:
            return f"output dtype is {str(got_dtype)[:40]}, expected {dtype}"
    return None


def _asks_for_gpu(text: str, source: str, kind: object) -> bool:
    if any(mark in text for mark in NO_GPU_MARKS):
        return True
    return kind == "AssertionError" and any(mark in source for mark in NO_GPU_LINES)


def count(value: object) -> int:
    """A number as a runner sent it; 0 for what is none."""
    return value if type(value) is int and 0 <= value < 1 << 31 else 0
