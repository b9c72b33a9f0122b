"""Text about programs: names of nodes in messages, and whole programs."""

import dataclasses

from forge.evalpool.judge.program.format import Value
from forge.evalpool.judge.program.walk import explain, node_names
from tests.evalpool.program.programs import addition, build, launch, op, pointers, tuned


def test_a_node_is_named_by_its_kind_count_subject_and_line() -> None:
    kernels = [pointers("add", "*fp32"), pointers("softmax_kernel", "*fp32")]
    program = build(
        inputs=[(4,)],
        buffers=[(1,)],
        kernels=kernels,
        init=[op("aten.fill_.Scalar", "t1", 0, results=(1,))],
        forward=[
            launch(0, "t0", line=30),
            op("aten.sum.default", "t0", results=(1,), line=40),
            launch(1, "t0", line=31),
            Value(tensor=1, answer=2.0),
        ],
        outputs=[0],
    )
    names = node_names(program)
    assert names["forward[2]"] == "launch 2 of 2: softmax_kernel, line 31"
    assert names["forward[1]"] == "op 1 of 1: aten.sum, line 40"
    assert names["forward[3]"] == "value 1 of 1: buffer 1 f32[1]"
    assert names["init[0]"] == "init: op 1 of 1: aten.fill_.Scalar"


def test_a_node_of_an_alternative_is_counted_within_it() -> None:
    path = "forward[0].alternatives[1].nodes[1]"
    assert node_names(tuned())[path] == "launch 1 of 1: add, line 31"


def test_a_program_is_explained_line_by_line() -> None:
    assert explain(addition()) == (
        "program for cuda:90:32, 1 launch\n"
        "kernel 0: add(p0: *fp32, p1: *fp32, p2: i32), 4 warps, 3 stages, 62 bytes of TTIR\n"
        "forward:\n"
        "  [line 31] launch add[1, 1, 1](p0=input 0 f32[4, 8], p1=buffer 1 f32[4, 8], p2=32)\n"
        "returns tensor: buffer 1 f32[4, 8]"
    )


def test_a_choice_shows_its_alternatives_and_the_winner() -> None:
    [choice] = tuned().forward
    decided = dataclasses.replace(tuned(), forward=(dataclasses.replace(choice, chosen=1),))
    text = explain(decided)
    assert (
        "  [line 30] choice of 2 configurations\n    0: BLOCK: 32\n      [line 31] launch" in text
    )
    assert "    1: BLOCK: 64 (chosen)\n      op aten.fill_.Scalar(buffer 1 f32[4, 8], 0.0)" in text


def test_a_view_shows_its_offset_and_strides() -> None:
    program = addition()
    column = dataclasses.replace(program.tensors[0], offset=3, shape=(4,), strides=(8,))
    program = dataclasses.replace(program, tensors=(column, program.tensors[1]))
    assert "p0=input 0 f32[4] from 3 strides [8]" in explain(program)
