"""Answers of an oracle on a GPU are checked before use. Needs no GPU."""

import contextlib
import gc
import os
import socket
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
import torch

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.shm import LayoutError
from forge.evalpool.judge.children.spawner import SandboxedChild
from forge.evalpool.judge.driver.driver import DriverError
from forge.evalpool.judge.driver.gpu_memory import Block
from forge.evalpool.judge.numbers import given
from forge.evalpool.judge.reference import oracle
from forge.evalpool.judge.trial.draws import Builder
from forge.evalpool.judge.trial.gpu import references as module
from forge.evalpool.judge.trial.gpu.references import (
    LARGE_SHARE,
    SMALL_SHARE,
    CardDraw,
    CardReferences,
    spec_of,
)
from forge.evalpool.judge.trial.judgement import Left, Results
from forge.evalpool.judge.trial.references import Oracles as JudgeOracles
from forge.evalpool.judge.trial.references import ProblemTooLarge, ReferenceFailed
from forge.records.problem import Problem, Split
from tests.evalpool.benches import DRAWN, RELU

BLOCK = Block(address=0, num_bytes=0, fd=-1, handle=0)


def layout(**changes: Any) -> dict[str, Any]:
    one = {"inputs": ["list", [["tensor", 0]]], "outputs": [1], "changed": [], "state": []}
    two = {"inputs": ["list", [["tensor", 3]]], "outputs": [4], "changed": [], "state": []}
    made = {
        "init": ["list", []],
        "state": [["w", 5]],
        "order": ["w"],
        "held": [],
        "sets": [one, two],
        "flops": 7,
        "form": "",
        "names": [],
    }
    return {**made, **changes}


def tensors() -> list[torch.Tensor]:
    four, empty = torch.zeros(4), torch.zeros(0)
    return [four, four, empty, four.clone(), four.clone(), torch.ones(2)]


def arrange(layout: dict[str, Any], tensors: list[torch.Tensor]) -> CardDraw:
    draw = Builder([spec_of(one) for one in tensors], precision="fp32").build(layout)
    return CardDraw(draw, tensors, BLOCK)


def test_sets_share_one_place_for_the_candidate() -> None:
    made = arrange(layout(), tensors()).draw
    assert made.request["sets"] == [["list", [["tensor", 1]]]] * 2
    assert made.request["state"] == [["w", 0]]
    assert made.request["tensors"] == [["float32", [2]], ["float32", [4]], ["float32", [4]]]
    assert (made.named, made.num_bytes) == ({"w": 5}, 40)
    assert (made.io_bytes, made.flops) == (32, 7)
    assert made.unseen == [1]


@pytest.mark.parametrize(
    "changes",
    [
        {"sets": []},
        {"state": [["w", 6]]},
        {"state": [["w", -1]]},
        {"sets": [{"inputs": ["tensor", 99], "outputs": [1]}]},
        {"sets": [{"inputs": ["pickle", "x"], "outputs": [1]}]},
        {"sets": [{**layout()["sets"][0], "wide": [5]}]},
        {"sets": [{**layout()["sets"][0], "plants": [[0, 4, "sign"]]}]},
        {"sets": [{"inputs": ["list", [["tensor", 0]]], "outputs": [True]}]},
        {"sets": [{**layout()["sets"][0], "state": [["w", 6]]}]},
        {"sets": [{**layout()["sets"][0], "state": [["w", 0]]}]},
        {"sets": [{**layout()["sets"][0], "state": [["v", 5]]}]},
    ],
)
def test_a_malformed_layout_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(LayoutError):
        arrange(layout(**changes), tensors())


def test_inputs_that_change_their_shape_from_call_to_call_are_refused() -> None:
    changed = tensors()
    changed[3] = torch.zeros(5)
    with pytest.raises(LayoutError, match="other shapes"):
        arrange(layout(), changed)


def test_a_set_with_other_arguments_has_a_program_of_its_own() -> None:
    one, two = layout()["sets"]
    sets = [one, {**two, "inputs": ["list", [["tensor", 3], ["value", 7]]]}, two]
    made = arrange(layout(sets=sets), tensors()).draw
    assert made.request["sets"][1] == ["list", [["tensor", 3], ["value", 7]]]
    assert made.timed == [0, 2]


def test_outputs_may_have_other_shapes_and_no_other_types() -> None:
    other = tensors()
    other[4] = torch.zeros(7)
    made = arrange(layout(), other)
    assert [made.draw.forms(number) for number in (0, 1)] == [
        [("float32", (4,))], [("float32", (7,))],
    ]  # fmt: skip
    call = Left(number=1, outputs=(torch.zeros(4),), parameters=None, is_kept=True)
    assert made.agree([(call.outputs[0], 4, None)]) == [False]
    assert Results(content=made).mismatch(call) == "output shape is [4], expected [7]"
    other[4] = torch.zeros(4, dtype=torch.int32)
    with pytest.raises(LayoutError, match="number or types"):
        arrange(layout(), other)


def test_the_last_sets_are_first_seen_when_timed() -> None:
    sets = layout()["sets"]
    many = arrange(layout(sets=sets * 2), tensors()).draw
    assert many.unseen == [2, 3]
    two = arrange(layout(), tensors()).draw
    assert two.unseen == [1]
    plant = [[0, 3, "sign"]]
    planted = [sets[0], *({**one, "plants": plant} for one in [*sets, sets[1]])]
    made = arrange(layout(sets=planted), tensors()).draw
    assert made.unseen == [2, 3]
    assert made.sets[1].plants[0].kind == "sign"
    planted[2] = {**planted[2], "wide": [6], "asks_real": False}
    made = arrange(
        layout(sets=planted, kinds=["float32"]), [*tensors(), torch.zeros(4, dtype=torch.float64)]
    ).draw
    assert (made.unseen, made.timed) == ([3], [0, 1, 3])


def test_tensors_among_the_constructors_arguments_are_named() -> None:
    init = ["list", [["tensor", 5], ["value", 3]]]
    made = arrange(layout(init=init, state=[]), tensors()).draw
    assert made.request["init"] == ["list", [["tensor", 0], ["value", 3]]]
    assert made.named == {"init.0": 5}
    assert made.request["tensors"][0] == ["float32", [2]]


def test_a_parameter_that_forward_changes_is_expected_as_it_leaves_it() -> None:
    one, two = layout()["sets"]
    sets = [{**one, "state": [["w", 6]]}, two]
    made = arrange(layout(sets=sets), [*tensors(), torch.zeros(2)])
    assert made.draw.changed_parameters == ("w",)
    assert [one.state for one in made.draw.sets] == [{"w": 6}, {}]
    assert {5, 6} <= made.wanted.keys()


@dataclass
class Oracles:
    """A spawner of oracles that answer in turn: a word is the error of one, "" that it hangs
    up, SILENT that it says nothing, a layout that it has done its work. After FULL it goes on."""

    answers: list[str | dict[str, Any]]
    asked: list[tuple[float, bool]] = field(default_factory=list)
    tf32: list[tuple[bool, bool]] = field(default_factory=list)
    """TF32 allowed in convolutions, and in products."""
    threads: list[threading.Thread] = field(default_factory=list)
    isolation: str = "namespaces"
    is_free: bool = True
    """True if one whose card was full has nothing left there."""
    num_made: int = 0

    def spawn(self, *, role: str, source: str) -> SandboxedChild:
        assert (role, bool(source)) == ("oracle", True)
        self.num_made += 1
        ours, theirs = socket.socketpair()
        thread = threading.Thread(target=self._serve, args=(theirs,))
        thread.start()
        self.threads.append(thread)
        return SandboxedChild(sock=ours, pid=1)

    def is_current(self, child: SandboxedChild) -> bool:
        return True

    def end(self, child: SandboxedChild) -> int:
        child.sock.close()
        self.threads.pop(0).join()
        return 0

    def _serve(self, sock: socket.socket) -> None:
        def next_of(kind: Kind) -> dict[str, Any]:
            return frames.receive(sock, deadline=time.monotonic() + 10, expected=(kind,)).body

        with sock, contextlib.suppress(frames.PeerGone):
            body, answer = next_of(Kind.PROBLEM), self.answers.pop(0)
            self.asked.append((body["memory_share"], body["plain"]))
            self.tf32.append((body["tf32"], body["tf32_products"]))
            if isinstance(answer, dict):
                frames.send(sock, Kind.LAYOUT, answer)
                next_of(Kind.FILL)
                frames.send(sock, Kind.DONE, {})
            elif answer == SILENT:
                next_of(Kind.FILL)
            elif answer:
                failed = {"type": answer, "message": "m", "is_free": self.is_free}
                frames.send(sock, Kind.FAILED, failed)
                if answer == FULL:
                    self._serve(sock)


class HostBlock:
    """Stands for memory of a card."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes, self.fd, self.is_closed = num_bytes, 0, False

    def bytes(self) -> torch.Tensor:
        return torch.zeros(self.num_bytes, dtype=torch.uint8)

    def close(self) -> None:
        self.is_closed = True


PROBLEM = Problem(problem_id="p", source="import os", family="", level=1, split=Split.GRPO)
SMALL, LARGE = (SMALL_SHARE, False), (LARGE_SHARE, False)
SMALL_PLAIN, LARGE_PLAIN = (SMALL_SHARE, True), (LARGE_SHARE, True)
FULL, SILENT = "OutOfMemoryError", "silent"


def answer(**changes: Any) -> dict[str, Any]:
    specs = [["float32", list(one.shape)] for one in tensors()]
    return layout(tensors=specs, **changes)


@dataclass
class SmallOracles(Oracles):
    """The same without a card: content is in memory that the judge hands over."""

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(frames.PeerGone):
            deadline = time.monotonic() + 10
            asked = frames.receive(
                sock, deadline=deadline, expected=(Kind.PROBLEM,), takes_fds=True
            )
            self.asked.append((0.0, asked.body["plain"]))
            answer = self.answers.pop(0)
            if isinstance(answer, dict):
                os.pwrite(asked.fds[0], bytes(range(128)) * 3, 0)
                frames.send(sock, Kind.LAYOUT, answer)
            else:
                kind, _, message = answer.partition(" ")
                frames.send(sock, Kind.FAILED, {"type": kind, "message": message or "m"})
            os.close(asked.fds[0])


def open_references(
    oracles: Oracles,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_tf32: bool = False,
    is_varied: bool = True,
    small: Oracles | None = None,
    **terms: Any,
) -> CardReferences:
    class Card:
        total_memory = 80 << 30

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: Card)
    monkeypatch.setattr(module, "create_block", HostBlock)
    spawner: Any = oracles
    kept = JudgeOracles(spawner, num_kept=2)
    other: Any = small
    return CardReferences(
        kept,
        num_sets=2,
        timeout_s=10.0,
        is_tf32=is_tf32,
        is_varied=is_varied,
        small=small and JudgeOracles(other, num_kept=2),
        **terms,
    )


def held(references: CardReferences) -> CardDraw:
    return references.hold(PROBLEM, shared=contextlib.nullcontext)


@pytest.mark.parametrize(
    ("is_tf32", "is_varied", "allowed"),
    [
        (True, True, (True, True)),
        (False, True, (False, False)),
        (True, False, (True, False)),
        (False, False, (True, False)),
    ],
)
def test_another_projects_protocol_has_tf32_by_torchs_defaults(
    is_tf32: bool, is_varied: bool, allowed: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    oracles = Oracles([answer()])
    open_references(oracles, monkeypatch, is_tf32=is_tf32, is_varied=is_varied).hold(
        PROBLEM, shared=contextlib.nullcontext
    )
    assert oracles.tf32 == [allowed]


def small_answer(**changes: Any) -> dict[str, Any]:
    return {**answer(kinds=["float32"]), "starts": [0, 64, 0, 128, 192, 256], **changes}


def test_a_small_problem_is_drawn_and_compared_without_the_card(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small, there = SmallOracles([small_answer()]), Oracles([])
    turns: list[str] = []

    @contextlib.contextmanager
    def turn() -> Generator[None]:
        turns.append("taken")
        yield

    made = open_references(there, monkeypatch, small=small).hold(PROBLEM, shared=turn)
    assert (small.asked, there.asked, turns) == ([(0.0, False)], [], ["taken"])
    content = torch.frombuffer(bytearray(range(128)) * 3, dtype=torch.float32)
    assert made.host.parts[4] == content[48:52].numpy().tobytes()
    assert torch.equal(made.tensors[3], content[32:36])
    assert made.wanted is made.host.wanted


@pytest.mark.parametrize(
    ("words", "source", "asked"),
    [
        ("NotSmall 0", "import os, torch", [SMALL]),
        (f"NotSmall {40 << 30}", "import os, torch", [LARGE]),
        ("RuntimeError", "import os, torch", [SMALL]),
        ("", "import os  # x.cuda()", [SMALL]),
        (small_answer(kinds=[]), "import os, torch", [SMALL]),
        (small_answer(starts=[0]), "import os, torch", [SMALL]),
    ],
)
def test_any_other_problem_is_drawn_on_the_card_and_not_tried_again(
    words: str | dict[str, Any],
    source: str,
    asked: list[tuple[float, bool]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small, there = SmallOracles([words] if words else []), Oracles([answer(), answer()])
    references = open_references(there, monkeypatch, small=small)
    problem = replace(PROBLEM, source=source)
    for _ in range(2):
        made = references.hold(problem, shared=contextlib.nullcontext)
        assert made.host is None
        made.draw.num_uses = 1 << 20  # the next one needs another draw
    assert there.asked == asked * 2


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [("return x + 1", False), ("return (x * 9).to(torch.int32)", True), ("return x @ x.T", True)],
)
def test_an_oracle_of_small_problems_refuses_what_a_card_may_see_otherwise(
    line: str, is_refused: bool
) -> None:
    source = (
        "import torch\nclass Model(torch.nn.Module):\n  def forward(self, x):\n    " + line
        + "\ndef get_inputs():\n  return [torch.rand(600, 64)]\ndef get_init_inputs():\n  return []"
    )  # fmt: skip
    body = {
        "source": source, "entry_point": "Model", "precision": "fp32", "num_sets": 2,
        "device": "cpu", "tf32": True, "tf32_products": True, "max_bytes": 64 << 20,
        "plain": False, "moved": True, "wide": True, "small": [1 << 20, 8 << 20],
    }  # fmt: skip
    if is_refused:
        with pytest.raises(oracle.NotSmall, match=r"^0$"):
            oracle._compute(body)
    else:
        assert oracle._compute(body)[0]["kinds"] == ["float32", "float64"]
    least = 5 * 4 * (600 * 64 + 3 * 600 * (600 if "@" in line else 64))  # outputs wide, too
    with pytest.raises(oracle.NotSmall, match=f"^{least}$"):
        oracle._compute({**body, "small": [1000, 8 << 20]})


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ([answer()], [SMALL]),
        ([FULL, answer()], [SMALL, LARGE]),
        (["ValueError", answer()], [SMALL, SMALL_PLAIN]),
        (["", answer()], [SMALL, SMALL_PLAIN]),
        ([FULL, "ValueError", answer()], [SMALL, LARGE, LARGE_PLAIN]),
        (["ValueError", FULL, answer()], [SMALL, SMALL_PLAIN, LARGE]),
        ([answer(is_short=True), answer(is_short=True)], [SMALL, LARGE]),
        (["", answer(is_short=True), answer()], [SMALL, SMALL_PLAIN, LARGE]),
    ],
)
def test_an_oracle_gets_more_room_or_plainer_inputs_where_it_fails(
    answers: list[str | dict[str, Any]],
    asked: list[tuple[float, bool]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    oracles = Oracles(answers)
    references = open_references(oracles, monkeypatch)
    assert held(references) is held(references)
    assert oracles.asked == asked


@pytest.mark.parametrize(("is_free", "num_made"), [(True, 1), (False, 3)])
def test_an_oracle_on_a_full_card_is_asked_again_unless_it_keeps_memory(
    is_free: bool, num_made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one needs a context, which takes longer than most draws."""
    oracles = Oracles([FULL, FULL, answer()], is_free=is_free)
    references = open_references(oracles, monkeypatch)
    references.hold(replace(PROBLEM, source="import torch"), shared=contextlib.nullcontext)
    assert (oracles.asked, oracles.num_made) == ([SMALL, LARGE, LARGE], num_made)
    references.end_idle()


def test_an_oracle_on_a_full_card_serves_on_until_it_keeps_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: dict[str, Any]) -> None:
        raise torch.OutOfMemoryError("full")

    ours, theirs = socket.socketpair()
    left = [1 << 30, 0]
    monkeypatch.setattr(oracle, "_compute", fail)
    monkeypatch.setattr(torch.cuda, "memory_reserved", left.pop)
    with ours, theirs:
        for _ in range(2):
            frames.send(ours, Kind.PROBLEM, {})
        oracle.main(theirs)
        found = [frames.receive(ours, deadline=1e9, expected=(Kind.FAILED,)).body for _ in range(2)]
    assert [(one["type"], one["is_free"]) for one in found] == [(FULL, True), (FULL, False)]


def test_a_kept_draw_needs_no_turn_on_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """While others are timed, candidates of a problem that is drawn go on."""
    turns: list[str] = []

    @contextlib.contextmanager
    def turn() -> Generator[None]:
        turns.append("taken")
        yield
        turns.append("given back")

    references = open_references(Oracles([answer()]), monkeypatch)
    for _ in range(3):
        references.hold(PROBLEM, shared=turn)
    assert turns == ["taken", "given back"]


def test_large_draws_make_room_for_each_other_and_not_for_a_small_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = answer()
    large["tensors"][5] = ["float32", [1000]]
    names = ["small", "one", "two", "three"]
    references = open_references(Oracles([answer(), large, large, large, large]), monkeypatch)
    references.small_bytes, references._max_cached_bytes = 1000, 9000

    def draw(name: str) -> CardDraw:
        problem = replace(PROBLEM, problem_id=name, source=f"import os  # {name}")
        references.let_go(found := references.hold(problem, shared=contextlib.nullcontext))
        return found

    first = {name: draw(name) for name in names}
    assert draw("small") is first["small"]
    assert draw("three") is first["three"]
    assert draw("two") is first["two"]
    assert draw("one") is not first["one"]


def test_a_large_draw_waits_until_no_other_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them filled a card of 140 GB: KernelBench's ReLU draws 36 GB."""
    large = answer()
    large["tensors"][5] = ["float32", [1000]]
    references = open_references(Oracles([FULL, large, FULL, large]), monkeypatch)
    references._memory_bytes = 32 * 1000
    first = held(references)
    block: Any = first.block
    drawn: list[CardDraw] = []
    other = replace(PROBLEM, problem_id="other", source="import os  # other")

    def draw() -> None:
        drawn.append(references.hold(other, shared=contextlib.nullcontext))

    thread = threading.Thread(target=draw)
    thread.start()
    thread.join(0.3)
    assert not drawn
    assert held(references) is first  # who comes while it waits shares what is held
    references.let_go(first)
    assert not block.is_closed
    references.let_go(first)
    thread.join(10.0)
    assert block.is_closed
    assert len(drawn) == 1


def test_a_large_draw_that_is_kept_late_makes_room_once_nobody_holds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another candidate looked for kept draws between its end and the moment when it was kept."""
    large = answer()
    large["tensors"][5] = ["float32", [1000]]
    references = open_references(Oracles([FULL, large, FULL, large]), monkeypatch)
    references._memory_bytes = 32 * 1000
    first = references._draw(PROBLEM, contextlib.nullcontext)
    other = replace(PROBLEM, problem_id="other", source="import os  # other")
    drawn: list[CardDraw] = []
    thread = threading.Thread(
        target=lambda: drawn.append(references.hold(other, shared=contextlib.nullcontext))
    )
    thread.start()
    thread.join(0.3)
    with references._lock:
        references._cache["late"] = first
        references._held("late", first)
    references.let_go(first)
    thread.join(10.0)
    assert len(drawn) == 1
    assert cast("Any", first.block).is_closed


@pytest.mark.parametrize("answers", [[FULL, FULL, FULL], ["ValueError", "ValueError"]])
def test_what_fails_to_the_end_is_the_references_fault(
    answers: list[str | dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    references = open_references(Oracles(answers), monkeypatch)
    with pytest.raises(ReferenceFailed, match=f"fails: {answers[-1]}: m"):
        held(references)
    gc.collect()
    assert not references._drawing  # nor is it remembered


def test_a_reference_that_took_all_its_time_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    oracles = Oracles([SILENT, answer()])
    references = open_references(oracles, monkeypatch)
    references._timeout_s = 0.05
    with pytest.raises(ReferenceFailed, match="DeadlinePassed"):
        held(references)
    assert len(oracles.answers) == 1


@pytest.mark.parametrize("told", ["ProblemTooLarge", answer()])
def test_a_draw_beyond_a_given_limit_is_too_large_and_not_tried_with_more_room(
    told: str | dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    oracles = Oracles([told, answer()])
    references = open_references(oracles, monkeypatch, is_varied=False, max_bytes=40)
    with pytest.raises(ProblemTooLarge, match="p is too large for this judge"):
        held(references)
    assert oracles.asked == [SMALL_PLAIN]
    assert held(open_references(oracles, monkeypatch, is_varied=False)).num_bytes > 40


def test_an_oracle_on_a_card_counts_before_it_draws_where_there_is_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("init", "set_per_process_memory_fraction"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(oracle, "_computed", lambda *_: "drawn")
    body = {**DRAWN, "source": RELU, "precision": "fp32", "device": "cuda", "memory_share": 0.1}
    assert oracle._compute({**body, "max_bytes": 1, "is_limited": False}) == "drawn"
    assert oracle._compute({**body, "max_bytes": 1 << 14, "is_limited": True}) == "drawn"
    with pytest.raises(given.ProblemTooLarge, match="GB for 2 sets"):
        oracle._compute({**body, "max_bytes": (1 << 14) - 1, "is_limited": True})


def test_a_full_card_is_not_the_references_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(num_bytes: int) -> Block:
        raise DriverError("full")

    references = open_references(Oracles([answer()]), monkeypatch)
    monkeypatch.setattr(module, "create_block", refuse)
    with pytest.raises(DriverError):
        held(references)
