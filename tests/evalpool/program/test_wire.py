"""Bytes of programs: they come back as they were, and hostile ones are refused with their place."""

import dataclasses
import json
import math
import sys
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.evalpool.judge.program import limits
from forge.evalpool.judge.program.format import (
    Descriptor,
    Origin,
    Program,
    Storage,
    Tensor,
    Value,
)
from forge.evalpool.judge.program.wire import HEAD_BYTES, MAGIC, InvalidProgram, dumps, loads
from tests.evalpool.program.mutations import mutated, outcome
from tests.evalpool.program.programs import (
    TTIR,
    addition,
    build,
    everything,
    launch,
    pointers,
    tuned,
)


def with_json(program: Program, change: Any) -> bytes:
    """The program's bytes after `change` has edited its JSON in place."""
    data = dumps(program)
    length = int.from_bytes(data[len(MAGIC) : HEAD_BYTES], "little")
    head = json.loads(data[HEAD_BYTES : HEAD_BYTES + length])
    change(head["program"])
    text = json.dumps(head).encode()
    return MAGIC + len(text).to_bytes(4, "little") + text + data[HEAD_BYTES + length :]


def raw(text: bytes) -> bytes:
    return MAGIC + len(text).to_bytes(4, "little") + text


def refused(data: bytes) -> str:
    with pytest.raises(InvalidProgram) as caught:
        loads(data)
    return str(caught.value)


# --- round trips


def test_programs_come_back() -> None:
    for program in (addition(), tuned(), everything()):
        assert loads(dumps(program)) == program


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -0.0, 1e-308])
def test_floats_keep_their_bits(value: float) -> None:
    kernel = pointers("scale", "*fp32", "fp32")
    program = build(inputs=[(4,)], kernels=[kernel], forward=[launch(0, "t0", value)], outputs=[0])
    node: Any = loads(dumps(program)).forward[0]
    assert repr(node.arguments[1]) == repr(value)


def test_equal_texts_are_stored_once() -> None:
    kernel = pointers("add", "*fp32", "*fp32", "i32", ttir=TTIR * 100)
    wide = dataclasses.replace(kernel, options=dataclasses.replace(kernel.options, num_warps=8))
    program = dataclasses.replace(addition(), kernels=(kernel, wide) * 50)
    assert loads(dumps(program)) == program
    assert len(dumps(program)) < len(kernel.ttir) + 30_000


# --- refusals, each with its place


LAUNCH, ARGUMENTS = "forward 0 launch", "forward 0 launch arguments"
MISFITS: list[tuple[str, str, Any]] = [
    ("forward[0].grid[1]: 65536 is above 65535", f"{LAUNCH} grid", [1, 65536, 1]),
    ("forward[0].grid[0]: bool where an integer", f"{LAUNCH} grid", [True, 1, 1]),
    ("forward[0].grid: 2 elements where 3", f"{LAUNCH} grid", [1, 1]),
    ("forward[0].grid[0]: 0 is below 1", f"{LAUNCH} grid", [0, 1, 1]),
    ("forward[0].grid[0]: float where", f"{LAUNCH} grid", [1.0, 1, 1]),
    ("outputs[0]: 9 is no index of 2 tensors", "outputs", [9]),
    ("unknown key 'eval'", "eval", "1"),
    ("program: target is missing", "target", None),
    ("target: 'cuda:90; rm' is not allowed", "target", "cuda:90; rm"),
    ("tensors[0]: ends at byte 132 of a storage of 128", "tensors 0 offset", 1),
    ("tensors[0].strides[0]: -8 is below 0", "tensors 0 strides", [-8, 1]),
    ("tensors[0].dtype: 'quint8'", "tensors 0 dtype", "quint8"),
    ("tensors[0].shape: 17 elements", "tensors 0 shape", [1] * 17),
    ("tensors[0]: 1 dimensions and 2 strides", "tensors 0 shape", [1]),
    ("tensors[0].storage: 2 is no index", "tensors 0 storage", 2),
    ("storages[1].name: a parameter has a name", "storages 1 name", "w"),
    ("storages[1]: a second storage of input 0", "storages 1 origin", "input"),
    ("storages[0].origin: 'disk' is none of", "storages 0 origin", "disk"),
    ("storages: input 9223372036854775808", "storages 0 index", 2**63),
    ("kernels[0].ttir: 1 is above 0", "kernels 0 ttir", 1),
    ("floats[1]: int where a finite float", "kernels 0 floats", [0.1, 2]),
    ("kernels[0].options.num_warps: 3 is no power", "kernels 0 options num_warps", 3),
    ("options.num_warps: 128 is above 64", "kernels 0 options num_warps", 128),
    ("options.num_warps: bool where an integer", "kernels 0 options num_warps", True),
    ("options.num_stages: 99 is above 32", "kernels 0 options num_stages", 99),
    ("options.maxnreg: 4 is below 8", "kernels 0 options maxnreg", 4),
    ("options.enable_fp_fusion: int where", "kernels 0 options enable_fp_fusion", 1),
    ("'tf32; rm'", "kernels 0 options default_dot_input_precision", "tf32; rm"),
    ("kernels[0].options: unknown key 'ptx_options'", "kernels 0 options ptx_options", "-o /x"),
    ("kernels[0].parameters[2].type: 'i33'", "kernels 0 parameters 2 type", "i33"),
    ("arguments[0]: p0: *fp64: a tensor of float32", "kernels 0 parameters 0 type", "*fp64"),
    ("arguments[2]: p2: i1: 32 is outside 0 to 1", "kernels 0 parameters 2 type", "i1"),
    ("arguments[2]: p2: *fp32: int does not fit", "kernels 0 parameters 2 type", "*fp32"),
    ("arguments[2]: p2: i32: 2.5 is no integer", f"{ARGUMENTS} 2", 2.5),
    ("arguments[2]: p2: i32: 2147483648 is outside", f"{ARGUMENTS} 2", 2**31),
    ("arguments[2]: p2: i32: True is no integer", f"{ARGUMENTS} 2", True),
    ("arguments[2]: 18446744073709551616 is above", f"{ARGUMENTS} 2", 2**64),
    ("arguments[2]: p2: i32: TensorUse does not fit", f"{ARGUMENTS} 2", {"tensor": 0}),
    ("forward[0]: 7 is no index of 2 tensors", f"{ARGUMENTS} 0", {"tensor": 7}),
    ("forward[0]: 2 arguments for 3 parameters", f"{ARGUMENTS} 2", None),
    ("forward[0]: 'jump' is no kind of node", "forward", [{"jump": {}}]),
    ("forward[0]: 0 keys where one", "forward", [{}]),
    ("init[0]: tensor 0 is an input", "init", [{"value": {"tensor": 0, "answer": None}}]),
    ("allocated in forward", "init", [{"value": {"tensor": 1, "answer": None}}]),
    ("returned: 'set' is not allowed", "returned", "set"),
    ("stateful: has characters", "stateful", "\x1b[2J"),
    ("forward: 10001 elements", "forward", [{}] * 10_001),
]


def changed(program: Any, place: str, value: Any) -> None:
    """Puts a value at a place of the JSON; None removes what is there."""
    *path, last = [int(key) if key.isdigit() else key for key in place.split()]
    for key in path:
        program = program[key]
    if value is None:
        del program[last]
    else:
        program[last] = value


def values(count: int) -> list[Any]:
    return [{"value": {"tensor": 0, "answer": None}}] * count


@pytest.mark.parametrize(("message", "place", "value"), MISFITS, ids=[one[0] for one in MISFITS])
def test_a_misfit_is_refused_with_its_place(message: str, place: str, value: Any) -> None:
    assert message in refused(with_json(addition(), lambda one: changed(one, place, value)))


def test_a_choice_stands_in_no_choice() -> None:
    def nest(program: Any) -> None:
        choice = program["forward"][0]
        program["forward"] = [{"choice": {"alternatives": [{"label": "", "nodes": [choice]}]}}]

    where = "forward[0].alternatives[0].nodes[0]"
    assert refused(with_json(tuned(), nest)) == f"{where}: a choice in a choice"


def test_nodes_of_all_lists_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_NODES", 5)

    def grow(program: Any) -> None:
        program["init"] = values(2)

    assert loads(dumps(tuned())) == tuned()  # a choice, and three nodes in its alternatives
    assert refused(with_json(tuned(), grow)) == "program: 6 nodes, more than 5"


def test_nodes_times_alternatives_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_VARIANT_NODES", 5)
    assert (
        refused(dumps(tuned())) == "program: 4 nodes beside a choice of 2 alternatives are too many"
    )


def test_tensors_times_alternatives_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_VARIANT_TENSORS", 10)
    assert loads(dumps(tuned()))  # two alternatives, five tensors in the longer one
    monkeypatch.setattr(limits, "MAX_VARIANT_TENSORS", 9)
    assert "tensors named beside a choice of 2 alternatives" in refused(dumps(tuned()))


def test_a_text_is_that_of_one_kernel() -> None:
    program = addition()
    (kernel,) = program.kernels
    wider = dataclasses.replace(kernel, options=dataclasses.replace(kernel.options, num_warps=8))
    assert loads(dumps(dataclasses.replace(program, kernels=(kernel, wider))))
    other = dataclasses.replace(kernel, name="other")
    words = "kernels[1].name: a text has one kernel, and another one is named"
    assert refused(dumps(dataclasses.replace(program, kernels=(kernel, other)))) == words


def test_a_value_reads_one_element_of_its_type() -> None:
    program = dataclasses.replace(addition(), forward=(Value(tensor=0, answer=None),))
    assert "one element" in refused(dumps(program))
    single = build(inputs=[(1,)], forward=[Value(tensor=0, answer=3)], outputs=[0])
    assert refused(dumps(single)) == "forward[0].answer: int for float32"


def test_a_descriptor_lies_inside_its_storage() -> None:
    outside = Descriptor(tensor=4, shape=(65, 64), strides=(64, 1), block_shape=(16, 32))
    program = everything()
    node: Any = program.forward[-1]
    node = dataclasses.replace(node, arguments=(outside, *node.arguments[1:]))
    assert "ends at byte 16640 of a storage of 16384" in refused(
        dumps(dataclasses.replace(program, forward=(node,)))
    )


def test_blobs_have_the_sizes_that_are_said() -> None:
    data = dumps(everything())
    assert "bytes of blobs" in refused(data + b"x")
    assert "bytes of blobs" in refused(data[:-1])
    shorter = dataclasses.replace(everything(), constants=(b"ab",))
    assert refused(dumps(shorter)) == "storages[6].num_bytes: 3, but its constant has 2 bytes"


def test_blobs_are_bounded() -> None:
    large = dataclasses.replace(
        addition(),
        storages=(
            *addition().storages,
            Storage(num_bytes=limits.MAX_CONSTANT_BYTES + 1, origin=Origin.CONSTANT),
        ),
        constants=(bytes(limits.MAX_CONSTANT_BYTES + 1),),
    )
    assert refused(dumps(large)).startswith("constants: 16777217 bytes, more than")
    kernel = pointers("add", "*fp32", "*fp32", "i32", ttir=" " * (limits.MAX_TTIR_BYTES + 1))
    assert refused(dumps(dataclasses.replace(addition(), kernels=(kernel,)))).startswith("texts: ")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        MAGIC,
        b"PK\x03\x04" * 10,
        raw(b"{"),
        raw(b"[]"),
        raw(b"{}"),
        raw(b"\xff"),
        raw(b"[" * 200_000),
        raw(b'{"version":' + b"9" * 10_000 + b"}"),
        raw(b'{"version":1,"texts":[],"program":NaN}'),
        raw(b'{"version":1,"texts":[],"program":1e999}'),
        raw(b'{"version":1,"version":1}'),
        raw(b'{"version":2,"texts":[],"program":{}}'),
        raw(b'{"version":1,"texts":[-1],"program":{}}'),
        raw(b'{"version":1,"texts":[],"program":{"\\ud800":1}}'),
        MAGIC + b"\xff\xff\xff\xff{}",
    ],
    ids=range(16),
)
def test_bytes_that_are_no_program(data: bytes) -> None:
    message = refused(data)
    assert len(message) < 200
    assert message.isprintable()


def test_a_deep_list_is_refused_whatever_the_recursion_limit() -> None:
    deep = b"[" * 10 * sys.getrecursionlimit() + b"]" * 10 * sys.getrecursionlimit()
    assert "nested too deep" in refused(raw(deep))


def test_empty_tensors_need_no_bytes() -> None:
    empty = Tensor(storage=0, offset=32, shape=(0, 2**40), strides=(2**40, 1), dtype="float32")
    program = dataclasses.replace(addition(), tensors=(*addition().tensors, empty))
    assert loads(dumps(program)).tensors[2] == empty


BASES = [dumps(program) for program in (addition(), tuned(), everything())]


@settings(max_examples=60)
@given(base=st.sampled_from(BASES), random=st.randoms(use_true_random=False))
def test_mutated_programs_are_refused_or_judged(base: bytes, random: Random) -> None:
    outcome(mutated(base, random))


@settings(max_examples=60)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    assert outcome(data) == "refused"
