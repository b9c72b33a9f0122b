"""The judge's side of executors: scripted processes at the other end of a socket, and real ones.

Real ones are forked by a nursery whose children have no card.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from forge.errors import Stalled
from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Frame, Kind, PeerGone
from forge.evalpool.judge.compiler.binary import Failure, FailureKind
from forge.evalpool.judge.execute import executors
from forge.evalpool.judge.execute.call import Call, parsed
from forge.evalpool.judge.execute.executors import (
    Executor,
    ExecutorGone,
    Executors,
    Nursery,
    ProgramFault,
    ProgramRefused,
)
from forge.evalpool.judge.program.format import (
    Alternative,
    Choice,
    Kernel,
    Launch,
    Op,
    Options,
    Program,
)

Answer = tuple[Kind, dict[str, Any]] | None
"""None: silence."""
REPORT = {"changed": [3], "written": [1]}
RAN = (Kind.DONE, {"answer": [REPORT]})
LAUNCH = Launch(kernel=0, grid=(1, 1, 1), arguments=(), line=7)
PROGRAM = Program(
    target="cuda:90:32",
    storages=(),
    tensors=(),
    kernels=(Kernel(name="hot", ttir="", options=Options(), parameters=()),),
    init=(Op(name="aten.mul.Tensor", arguments=(), line=3),),
    forward=(Choice(alternatives=(Alternative(label="one", nodes=(LAUNCH,)),), line=5), LAUNCH),
    outputs=(),
)


class Scripted:
    """Answers each request in turn; notes what it was asked and if it was ended."""

    def __init__(self, answers: Sequence[Answer], *, progress: int = 0) -> None:
        self.sock, self._theirs = socket.socketpair()
        self.asked: list[Frame] = []
        self.contents: list[bytes] = []
        """Memory that came with the requests."""
        self.has_ended = False
        self._answers, self._progress = list(answers), progress
        self._thread = threading.Thread(target=self._serve, daemon=True)
        frames.send(self._theirs, Kind.READY, {"device": "made up"})
        self._thread.start()

    def _serve(self) -> None:
        with self._theirs:
            for answer in self._answers:
                try:
                    asked = frames.receive(
                        self._theirs, deadline=soon(), expected=tuple(Kind), takes_fds=True
                    )
                    self.asked.append(asked)
                    for fd in asked.fds:
                        self.contents.append(os.pread(fd, 100, 0))
                        os.close(fd)
                    if answer is not None:
                        frames.send(self._theirs, *answer)
                except PeerGone:
                    return
            if self._answers and self._answers[-1] is None:
                with_no_answer = threading.Event()
                while not self.has_ended:
                    with_no_answer.wait(0.01)

    def progress(self) -> int:
        return self._progress

    def end(self) -> None:
        self.has_ended = True
        self.sock.close()
        self._thread.join(5)


def executor(*answers: Answer, progress: int = 0) -> tuple[Executor, Scripted]:
    channel = Scripted(answers, progress=progress)
    made = Executor(cast(Any, channel))
    made.wait_ready(timeout_s=30)
    return made, channel


def soon(seconds: float = 30.0) -> float:
    return time.monotonic() + seconds


def load(made: Executor) -> None:
    failure = Failure(kind=FailureKind.COMPILE_ERROR, message="too large")
    made.load(PROGRAM, b"bytes", [failure], deadline=soon())


def test_a_run_reports_what_the_process_found() -> None:
    made, channel = executor((Kind.DONE, {}), RAN)
    load(made)
    call = Call(fills=((0, 256),), placement="end", poison=7, is_kept=True)
    (report,) = made.run([call], deadline=soon())
    assert (report.changed, report.written) == ((3,), (1,))
    loaded, ran = channel.asked
    assert loaded.body["binaries"] == [[None, "too large"]]
    assert channel.contents == [b"bytes"]
    assert parsed(list[Call], ran.body["calls"]) == [call]
    made.end()


def test_a_refusal_keeps_the_process() -> None:
    body = {"reason": "out_of_resources", "message": "too much shared memory", "line": 12}
    made, channel = executor((Kind.REFUSED, body), RAN)
    with pytest.raises(ProgramRefused, match="shared") as caught:
        load(made)
    assert (caught.value.reason, caught.value.line) == ("out_of_resources", 12)
    assert made.is_alive
    assert not channel.has_ended
    made.run([Call()], deadline=soon())
    made.end()


@pytest.mark.parametrize(
    ("number", "what", "line"),
    [(1, "aten.mul.Tensor", 3), (2, "choice", 5), (3, "launch of hot", 7), (4, "launch of hot", 7)],
)
def test_a_fault_names_its_step_and_ends_the_process(number: int, what: str, line: int) -> None:
    fault = (Kind.FAULT, {"message": "ILLEGAL_ADDRESS", "step": {}})
    fault[1]["step"] = {"step": number}
    made, channel = executor((Kind.DONE, {}), fault, progress=number)
    load(made)
    with pytest.raises(ProgramFault, match="ILLEGAL") as caught:
        made.run([Call()], deadline=soon())
    assert caught.value.reason == "gpu_fault"
    assert caught.value.step.what.startswith(what)
    assert caught.value.step.line == line
    assert channel.has_ended
    assert not made.is_alive


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"answer": [{**REPORT, "written": ["x"]}]},
        {"answer": [{"changed": []}]},
        {"answer": [{**REPORT, "changed": 3}]},
    ],
)
def test_a_malformed_answer_is_the_executors_fault(body: dict[str, Any]) -> None:
    made, _ = executor((Kind.DONE, body))
    with pytest.raises(ExecutorGone, match="malformed"):
        made.run([Call()], deadline=soon())
    made.end()


@pytest.mark.parametrize(
    "answer", [[], [{"gpu_us": -1.0, "changed": []}], [{"gpu_us": float("nan"), "changed": []}]]
)
def test_times_that_are_none_are_the_executors_fault(answer: list[Any]) -> None:
    made, _ = executor((Kind.DONE, {"answer": answer}))
    with pytest.raises(ExecutorGone):
        made.time([Call()], warm_up=Call(), deadline=soon())
    made.end()


def test_a_process_that_ends_by_itself_is_not_the_programs_fault() -> None:
    made, _ = executor()
    with pytest.raises(ExecutorGone):
        load(made)
    assert not made.is_alive
    with pytest.raises(ExecutorGone):
        made.run([Call()], deadline=soon())


@contextmanager
def pair_of(
    start: Callable[[], Executor], *, num: int = 1, num_spares: int = 1
) -> Iterator[Executors]:
    made = Executors(start, num=num, num_spares=num_spares)
    try:
        yield made
    finally:
        made.close()


def test_the_next_program_runs_on_the_spare_after_a_fault() -> None:
    fault = (Kind.FAULT, {"message": "x", "step": None})
    scripts = iter([[(Kind.DONE, {}), fault], [(Kind.DONE, {})], [], []])
    made: list[Scripted] = []

    def start() -> Executor:
        one, channel = executor(*next(scripts))
        made.append(channel)
        return one

    with pair_of(start) as executors:
        with executors.taken(timeout_s=5) as one:
            load(one)
            with pytest.raises(ProgramFault):
                one.run([Call()], deadline=soon())
        with executors.taken(timeout_s=5) as other:
            load(other)
            assert other is not one
        with executors.taken(timeout_s=5) as again:
            assert again is other
    assert all(one.has_ended for one in made)


def test_several_programs_run_at_once_and_one_alone_waits_for_all() -> None:
    with pair_of(lambda: executor()[0], num=2) as executors:
        with executors.taken(timeout_s=5) as one:
            with executors.taken(timeout_s=5) as two:
                assert one is not two
                with pytest.raises(Stalled), executors.taken(timeout_s=0.02):
                    pass
            with pytest.raises(Stalled), executors.taken(timeout_s=0.02, is_alone=True):
                pass
        with executors.taken(timeout_s=5, is_alone=True) as alone:
            assert alone in (one, two)
            with pytest.raises(Stalled), executors.taken(timeout_s=0.02):
                pass
        with executors.taken(timeout_s=5), executors.taken(timeout_s=5):
            pass


def test_a_process_that_cannot_be_made_is_reported_and_tried_again() -> None:
    is_broken = True

    def start() -> Executor:
        if is_broken:
            raise ExecutorGone("no card")
        return executor()[0]

    with pair_of(start) as executors:
        with pytest.raises(ExecutorGone, match="no card"), executors.taken(timeout_s=5):
            pass
        end = soon()
        while not executors._spares[0].done() and time.monotonic() < end:
            time.sleep(0.001)
        is_broken = False  # the next attempt succeeds; the last one failed while nobody waited
        with executors.taken(timeout_s=5) as one:
            assert one.is_alive


def test_siblings_that_fault_together_find_as_many_spares() -> None:
    fault = (Kind.FAULT, {"message": "illegal address", "step": True})
    may_start = threading.Event()
    may_start.set()

    def start() -> Executor:
        may_start.wait(60)
        return executor((Kind.DONE, {}), fault)[0]

    with pair_of(start, num=3, num_spares=3) as executors:
        with ExitStack() as held:
            siblings = [held.enter_context(executors.taken(timeout_s=5)) for _ in range(3)]
            end = soon()
            while not all(one.done() for one in executors._spares) and time.monotonic() < end:
                time.sleep(0.001)
            may_start.clear()
            for one in siblings:
                load(one)
                with pytest.raises(ProgramFault):
                    one.run([Call()], deadline=soon())
        for _ in range(3):
            with executors.taken(timeout_s=1) as spare:
                assert spare not in siblings
                spare.end()
        with pytest.raises(Stalled), executors.taken(timeout_s=0.02):
            pass
        may_start.set()


TWO_OPERATIONS = Program(
    target="cuda:90:32",
    storages=(),
    tensors=(),
    kernels=(),
    init=(),
    forward=(Op(name="aten.first", arguments=()), Op(name="aten.second", arguments=())),
    outputs=(),
)


@pytest.fixture
def nursery(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nursery]:
    monkeypatch.setattr(executors, "MODULE", "tests.evalpool.execute.stand_in_nursery")
    made = Nursery()
    yield made
    made.close()


def pid_of(executor: Executor) -> int:
    channel: Any = executor._channel
    facts = Path(f"/proc/self/fdinfo/{channel._pidfd}").read_text()
    return int(facts.partition("Pid:")[2].split()[0])


def state_of(pid: int) -> tuple[str, int]:
    """(state, parent) of a process; `gone` where there is none."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            state, parent = file.read().rpartition(")")[2].split()[:2]
    except OSError:
        return "gone", 0
    return state, int(parent)


def is_alive(pid: int) -> bool:
    return state_of(pid)[0] not in ("Z", "gone")


def test_executors_are_forked_and_end_with_the_nursery(nursery: Nursery) -> None:
    one, other = nursery.start(), nursery.start()
    pids = [pid_of(one), pid_of(other)]
    assert len(set(pids)) == 2
    one.unload(deadline=soon())
    nursery.close()
    while any(is_alive(pid) for pid in pids):  # the death signal comes a moment later
        time.sleep(0.005)
    one.end()
    other.end()


def test_a_process_that_does_not_answer_is_killed_and_its_step_is_known(nursery: Nursery) -> None:
    executor = nursery.start()
    pid = pid_of(executor)
    executor.load(TWO_OPERATIONS, b"bytes", [], deadline=soon())
    with pytest.raises(ProgramFault, match=r"in aten\.second") as caught:
        executor.run([Call()], deadline=soon(0.2))
    assert caught.value.reason == "timeout"
    assert not is_alive(pid)


def test_a_process_that_dies_is_gone_and_the_next_one_starts(nursery: Nursery) -> None:
    executor = nursery.start()
    with pytest.raises(ExecutorGone):
        executor.tune(Call(), deadline=soon())
    other = nursery.start()
    other.unload(deadline=soon())
    other.end()


def test_a_nursery_that_was_killed_is_made_anew(nursery: Nursery) -> None:
    executor = nursery.start()
    _, parent = state_of(pid_of(executor))
    executor.end()
    os.kill(parent, signal.SIGKILL)
    with pytest.raises(ExecutorGone):
        nursery.start()
    nursery.start().end()
