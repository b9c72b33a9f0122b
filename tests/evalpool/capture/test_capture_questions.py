"""A capture asks the judge for values that the host reads."""

import socket
import threading
import time
from typing import Any

import pytest

from forge.evalpool.judge.capture import capture_child, exchange
from forge.evalpool.judge.capture.exchange import CaptureFailed
from forge.evalpool.judge.capture.stage import Stage
from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.program.format import Op, Value
from tests.evalpool.capture.capturing import SCALE, captured, launches, ops, request

CLASS = SCALE + "class ModelNew(torch.nn.Module):\n    def forward(self, x):\n        "


class Judge:
    """Answers each question with the same values, and remembers the questions."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []

    def __call__(self, program: Any) -> Any:
        self.asked.append(program)
        return self.answers[: len(program.outputs)]


def test_a_read_value_decides_what_is_launched(tmp_path):
    code = CLASS + "return scaled(x, 5.0) if x.sum() > 2 else x"
    program = captured(tmp_path, code, inputs=[[8]], ask=Judge(True))
    assert [type(node).__name__ for node in program.forward] == ["Op", "Op", "Value", "Launch"]
    value = program.forward[2]
    assert isinstance(value, Value)
    assert value.answer is True
    assert program.tensors[value.tensor].dtype == "bool"


def test_a_question_carries_the_program_until_then(tmp_path):
    judge = Judge(1.5, 2.5)
    code = CLASS + "a, b = scaled(x[:2]).tolist()\n        return scaled(x, a + b)"
    program = captured(tmp_path, code, inputs=[[8]], ask=judge)
    assert launches(program)[1].arguments[-1] == 4.0
    prefix = judge.asked[0]
    assert len(launches(prefix)) == 1
    assert len(prefix.outputs) == 2
    first, second = (prefix.tensors[one] for one in prefix.outputs)
    assert (first.storage, first.offset, second.offset) == (second.storage, 0, 1)


def test_the_second_call_repeats_the_questions_of_the_first(tmp_path):
    judge = Judge(7)
    captured(tmp_path, CLASS + "return scaled(x, x.argmax().item())", inputs=[[8]], ask=judge)
    assert len(judge.asked) == 2


REMEMBERING = (
    SCALE
    + """known = {}
def size(x):
    for one, found in known.items():
        if one is x:
            return found
    return known.setdefault(x, torch.arange(x.argmax().item()).to(x.device, torch.float32))
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return scaled(size(x), 2.0)
"""
)


def test_what_a_candidate_remembers_of_an_input_is_not_that_of_another_call(tmp_path):
    judge = Judge(7)
    program = captured(tmp_path, REMEMBERING, inputs=[[8]], ask=judge)
    assert len(judge.asked) == 2
    assert any(isinstance(node, Value) for node in program.forward)
    assert (program.init, program.stateful) == ((), "")


def test_more_than_64_values_are_refused(tmp_path):
    code = CLASS + "return scaled(x, sum(x.tolist()))"
    with pytest.raises(CaptureFailed, match="at most 64 values"):
        captured(tmp_path, code, inputs=[[65]], ask=Judge())


def test_the_size_of_a_selection_is_a_value(tmp_path):
    code = CLASS + "return scaled(x[x > 0])"
    program = captured(tmp_path, code, inputs=[[8]], ask=Judge(3))
    assert ops(program) == [
        "aten.gt.Scalar", "aten.count_nonzero.default", "aten.nonzero.default", "aten.index.Tensor",
    ]  # fmt: skip
    assert program.tensors[program.outputs[0]].shape == (3,)


@pytest.fixture
def judge():
    """The judge's end of a socket whose other end a capture child serves."""
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    with ours, theirs:
        yield ours, theirs


def serve(theirs: socket.socket, file: str) -> threading.Thread:
    thread = threading.Thread(target=capture_child.main, args=(theirs,), kwargs={"file": file})
    thread.start()
    return thread


def test_a_child_answers_with_a_programs_bytes_after_its_questions(judge, tmp_path):
    ours, theirs = judge
    thread = serve(theirs, str(tmp_path / "candidate.py"))
    code = CLASS + "return torch.full((4,), x.amax().item(), device=x.device)"
    frames.send(ours, Kind.CANDIDATE, {**request(inputs=[[8]]), "code": code})
    deadline = time.monotonic() + 20
    while (found := exchange.receive(ours, deadline=deadline)).kind is Kind.ASK:
        assert [type(one) for one in wire.loads(found.program).forward] == [Op]
        exchange.answer(ours, [2.5])
    thread.join()
    Stage.get().end()
    assert found.kind is Kind.DONE
    last = wire.loads(found.program).forward[-1]
    assert isinstance(last, Op)
    assert last.arguments == ((4,), 2.5)


def test_a_child_reports_a_failure_and_an_unanswered_question(judge, tmp_path):
    ours, theirs = judge
    thread = serve(theirs, str(tmp_path / "candidate.py"))
    code = CLASS + "return x.amax().item()"
    frames.send(ours, Kind.CANDIDATE, {**request(inputs=[[8]]), "code": code})
    deadline = time.monotonic() + 20
    assert exchange.receive(ours, deadline=deadline).kind is Kind.ASK
    exchange.answer(ours, None)
    found = exchange.receive(ours, deadline=deadline)
    thread.join()
    Stage.get().end()
    assert found.kind is Kind.FAILED
    assert (found.body["type"], found.body["line"]) == ("Unsupported", 17)


def test_a_long_program_arrives_whole(judge):
    ours, theirs = judge
    data = bytes(range(256)) * (2 * frames.MAX_BODY_BYTES // 256)
    sender = threading.Thread(target=exchange.send_program, args=(theirs, Kind.DONE, {}, data))
    sender.start()
    found = exchange.receive(ours, deadline=time.monotonic() + 20)
    sender.join()
    assert found.program == data


@pytest.mark.parametrize("size", [0, exchange.MAX_PROGRAM_BYTES + 1, "8"])
def test_a_program_of_no_length_within_the_bounds_breaks_the_format(judge, size):
    ours, theirs = judge
    frames.send(theirs, Kind.DONE, {"num_bytes": size, "body": {}})
    with pytest.raises(frames.FrameError, match="no program of at most"):
        exchange.receive(ours, deadline=time.monotonic() + 5)
