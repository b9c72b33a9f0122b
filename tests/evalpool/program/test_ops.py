"""The closed table of operations: names, schemas, kinds."""

import dataclasses
from typing import Any

import pytest

from forge.evalpool.judge.program.format import NamedConstant, Op, Program, Tensor
from forge.evalpool.judge.program.ops import (
    KINDS,
    LINES,
    PATH,
    Kind,
    kind_of,
    misuse,
    packet,
    schemas,
)
from tests.evalpool.program.programs import addition, dense, op

FLOAT16 = NamedConstant(kind="dtype", name="float16")


def program(*tensors: Tensor) -> Program:
    return dataclasses.replace(addition(), tensors=tensors)


def test_each_operation_has_one_kind_in_all_of_its_forms() -> None:
    pairs = {(packet(schema.partition("(")[0]), kind) for kind, _, schema in LINES}
    assert pairs == {(name, str(kind)) for name, kind in KINDS.items()}


@pytest.mark.parametrize(
    "name",
    [
        "from_file",
        "set_",
        "as_strided",
        "as_strided_",
        "resize_",
        "empty",
        "view",
        "record_stream",
        "_embedding_bag",
    ],
)
def test_what_could_leave_its_storage_is_not_in_the_table(name: str) -> None:
    assert not [known for known in schemas() if known.split(".")[1] == name]
    message = f"aten.{name} is not among the operations that a program may have"
    assert misuse(op(f"aten.{name}.default")) == message


def test_schemas_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    if not torch.__version__.startswith("2.13"):
        pytest.skip("written by torch 2.13")
    from bench import write_schemas  # imports torch

    assert "\n".join(write_schemas.lines()) + "\n" == PATH.read_text(encoding="utf-8")


def test_no_operation_takes_a_generator_or_a_device() -> None:
    names = {argument.name for schema in schemas().values() for argument in schema.arguments}
    assert not names & {"generator", "device", "pin_memory"}


FITTING = [
    op("aten.add.Tensor", "t0", "t1", alpha=2),
    op("aten.add.Tensor", "t0", 2.0),
    op("aten.cat.default", ["t0", "t1"], -1, results=(2,)),
    op("aten.index.Tensor", "t0", [None, "t1"]),
    op("aten.sum.dim_IntList", "t0", [0, 1], True, dtype=FLOAT16),
    op("aten.sum.dim_IntList", "t0", 0),
    op("aten.full.default", [2, 3], float("inf"), results=(0,)),
    op("aten._to_copy.default", "t0", dtype=FLOAT16, memory_format=None),
    op("aten.max.dim", "t0", 1, results=(1, 2)),
    op("aten.copy_.default", "t0", "t1", results=(0,)),
    op("aten.convolution.default", "t0", "t1", None, [1], [0], [1], False, [0], 1),
    op("aten.gelu.default", "t0", approximate="tanh"),
    op("aten.clamp.default", "t0", None, 6.0),
]
MISFITTING = [
    (op("aten.add.Tensor", "t0"), "other is missing"),
    (op("aten.add.Tensor", "t0", "t1", 2), "3 arguments where 2 are the most"),
    (op("aten.add.Tensor", "t0", "t1", self="t0"), "no argument self"),
    (op("aten.add.Tensor", "t0", "t1", alpha="two"), "alpha must be Scalar"),
    (op("aten.add.Scalar", "t0", "t1"), "other must be Scalar"),
    (op("aten.add_.Tensor", 1.0, "t1"), "self is written to, so it must be a tensor"),
    (op("aten.cat.default", "t0"), "tensors must be Tensor[]"),
    (op("aten.cat.default", ["t0", None]), "tensors must be Tensor[]"),
    (op("aten.sum.dim_IntList", "t0", [True]), "dim must be int[1]?"),
    (op("aten._to_copy.default", "t0", dtype="float16"), "dtype must be ScalarType?"),
    (op("aten._softmax.default", "t0", 1, 0), "half_to_float must be bool"),
    (op("aten.randn.default", [2], generator="t0"), "no argument generator"),
    (op("aten.mm.default", "t0", "t1", results=(1, 2)), "2 results where 1 are the most"),
]


@pytest.mark.parametrize("fitting", FITTING, ids=lambda o: o.name)
def test_arguments_that_fit(fitting: Op) -> None:
    assert misuse(fitting) is None


@pytest.mark.parametrize(("wrong", "message"), MISFITTING, ids=[m for _, m in MISFITTING])
def test_arguments_that_do_not_fit(wrong: Op, message: str) -> None:
    said = misuse(wrong)
    assert said.endswith(f": {message}")


FLOAT, HALF, INT, LONG, BOOL = "float32", "float16", "int32", "int64", "bool"


@pytest.mark.parametrize(
    ("name", "source", "result", "kind"),
    [
        ("aten.zeros.default", None, FLOAT, Kind.FILL),
        ("aten.clone.default", FLOAT, FLOAT, Kind.COPY),
        ("aten._to_copy.default", FLOAT, HALF, Kind.CAST),
        ("aten._to_copy.default", INT, FLOAT, Kind.CAST),
        ("aten._to_copy.default", BOOL, INT, Kind.CAST),
        ("aten._to_copy.default", LONG, INT, Kind.CAST),
        ("aten._to_copy.default", INT, "uint8", Kind.INDEX),
        ("aten._to_copy.default", FLOAT, INT, Kind.COMBINE),
        ("aten._to_copy.default", FLOAT, BOOL, Kind.COMBINE),
        ("aten._to_copy.default", LONG, BOOL, Kind.INDEX),
        ("aten.copy_.default", FLOAT, LONG, Kind.COMBINE),
        ("aten.constant_pad_nd.default", FLOAT, FLOAT, Kind.PAD),
        ("aten.sum.default", FLOAT, FLOAT, Kind.COMBINE),
        ("aten.cumsum.default", INT, INT, Kind.INDEX),
        ("aten.argmax.default", FLOAT, LONG, Kind.COMBINE),
        ("aten.sort.default", LONG, LONG, Kind.INDEX),
        ("aten.add_.Tensor", FLOAT, FLOAT, Kind.COMBINE),
        ("aten.__and__.Tensor", BOOL, BOOL, Kind.INDEX),
        ("aten.cat.default", FLOAT, FLOAT, Kind.COPY),
        ("aten.index.Tensor", FLOAT, FLOAT, Kind.INDEX),
        ("aten.scatter.src", FLOAT, FLOAT, Kind.INDEX),
        ("aten.scatter.reduce", FLOAT, FLOAT, Kind.COMBINE),
        ("aten._softmax.default", FLOAT, FLOAT, Kind.HEAVY),
        ("aten.uniform_.default", None, FLOAT, Kind.RANDOM),
    ],
)
def test_kinds(name: str, source: str | None, result: str, kind: Kind) -> None:
    held = program(dense(0, 4, dtype=source or result), dense(1, 4, dtype=result))
    arguments: list[Any] = ["t0"] if source else []
    assert kind_of(held, op(name, *arguments, results=(1,))) == kind


def test_a_move_by_index_that_adds_combines() -> None:
    held = program(dense(0, 4), dense(1, 4, dtype=LONG))
    assert kind_of(held, op("aten.index_put_.default", "t0", ["t1"], "t0", False)) == Kind.INDEX
    assert kind_of(held, op("aten.index_put_.default", "t0", ["t1"], "t0", True)) == Kind.COMBINE
    assert kind_of(held, op("aten.index_select.default", "t0", 1, "t1", results=(0,))) == Kind.INDEX


def test_a_sum_of_one_part_is_a_copy() -> None:
    held = program(dense(0, 1, 4), dense(1, 4), dense(0, 2, 4), dense(1, 4, dtype=LONG))
    assert kind_of(held, op("aten.sum.dim_IntList", "t0", [0], results=(1,))) == Kind.COPY
    assert kind_of(held, op("aten.sum.dim_IntList", "t0", [0], results=(3,))) == Kind.COMBINE
    assert kind_of(held, op("aten.sum.dim_IntList", "t2", [0], results=(1,))) == Kind.COMBINE
    assert kind_of(held, op("aten.sum.dim_IntList", "t0", [1], results=(1,))) == Kind.COMBINE
    assert kind_of(held, op("aten.sum.dim_IntList", "t0", [], results=(1,))) == Kind.COMBINE
    assert kind_of(held, op("aten.prod.dim_int", "t0", 0, results=(1,))) == Kind.COMBINE
