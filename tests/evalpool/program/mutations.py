"""Mutated programs: bytes that are nearly a program, and the promise that holds for all of them."""

import copy
import json
import math
from collections.abc import Iterator
from random import Random
from typing import Any

from forge.evalpool.judge.program.format import ITEM_BYTES, Program
from forge.evalpool.judge.program.ops import schemas
from forge.evalpool.judge.program.policy import ProblemFacts, facts_of, judge_policy
from forge.evalpool.judge.program.walk import explain
from forge.evalpool.judge.program.wire import HEAD_BYTES, MAGIC, InvalidProgram, dumps, loads

ODD: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 3, 7, 64, 2**31, 2**44, 2**63, 2**64, -(2**63), 10**400),
    *(0.5, -0.0, 1e308, "", "tensor", "forward", "*fp32", "i64", "float64", "\x00", "x" * 300),
    *([], {}, [[[[[]]]]], [1, 2, 3], {"tensor": 0}, {"tensor": 10**9}, {"float": "nan"}),
    *({"float": []}, {"dtype": "int64"}, {"value": {"tensor": 0, "answer": None}}),
]
"""Values that take another's place."""

Holder = tuple[Any, Any]
"""A container of the JSON and the key or index of one of its values."""


def mutated(base: bytes, random: Random) -> bytes:
    """Bytes of a program with one or a few mistakes: in its records, or in its bytes."""
    if random.random() < 0.1:
        return _mutated_bytes(base, random)
    length = int.from_bytes(base[len(MAGIC) : HEAD_BYTES], "little")
    head = json.loads(base[HEAD_BYTES : HEAD_BYTES + length])
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        _mistake(head, random)
    text = json.dumps(head).encode()
    return MAGIC + len(text).to_bytes(4, "little") + text + base[HEAD_BYTES + length :]


def _mutated_bytes(base: bytes, random: Random) -> bytes:
    data = bytearray(base)
    for _ in range(random.randint(1, 4)):
        at, new = random.randrange(len(data)), random.randbytes(random.randint(1, 9))
        match random.randrange(3):
            case 0:
                data[at] = new[0]
            case 1:
                del data[at : at + len(new)]
            case _:
                data[at:at] = new
        data = data or bytearray(b"x")
    return bytes(data)


def _mistake(head: Any, random: Random) -> None:
    """One mistake in the records; new values are copies, which a later mistake may change."""
    found = list(holders(head))
    (holder, key), (other, there) = random.choice(found), random.choice(found)
    odd = copy.deepcopy(random.choice(ODD))
    numbers = [(h, k) for h, k in found if type(h[k]) is int]
    lists = [h[k] for h, k in found if isinstance(h[k], list) and h[k]]
    records = [(k, h[k]) for h, k in found if isinstance(h[k], dict)]
    nodes = [h[k] for h, k in found if k in ("forward", "nodes") and isinstance(h[k], list)]
    match random.choice(MISTAKES):
        case "replace":
            holder[key] = odd
        case "swap":
            holder[key] = json.loads(json.dumps(other[there]))  # a JSON has no cycles
        case "remove":
            del holder[key]
        case "nudge" if numbers:
            holder, key = random.choice(numbers)
            holder[key] += random.choice([-1, 1, 2, 8])
        case "repeat" if lists:
            chosen = random.choice(lists)
            chosen.insert(random.randint(0, len(chosen)), random.choice(chosen))
        case "add key" if records:
            _, record = random.choice(records)
            record[random.choice(["line", "chosen", "x", "alpha"])] = odd
        case "rename" if ops := [record for name, record in records if name == "op"]:
            random.choice(ops)["name"] = random.choice(OPERATIONS)
        case "insert" if nodes:
            schema = schemas()[random.choice(OPERATIONS)]
            arguments = [_argument(a.type, random) for a in schema.arguments if not a.is_keyword]
            made = {"name": schema.name, "arguments": arguments, "results": [random.randrange(3)]}
            chosen = random.choice(nodes)
            chosen.insert(random.randint(0, len(chosen)), {"op": made})
        case _:
            pass


def _argument(type: str, random: Random) -> Any:
    """A literal that fits a type of `schemas.txt`."""
    if type.endswith("?"):
        return None
    if type.endswith("]"):
        return [_argument(type.partition("[")[0], random)]
    known = {"Tensor": {"tensor": random.randrange(3)}, "bool": True, "str": "none"}
    return known.get(type, {"dtype": "float32"} if type == "ScalarType" else random.randrange(3))


MISTAKES = [
    *("replace", "swap", "nudge", "nudge", "remove", "repeat", "add key", "rename"),
    *["insert"] * 5,
]
OPERATIONS = sorted(schemas())


def holders(value: Any) -> Iterator[Holder]:
    """Each value below a JSON value, as its container and its key."""
    match value:
        case dict():
            keys: Any = list(value)
        case list():
            keys = range(len(value))
        case _:
            return
    for key in keys:
        yield value, key
        yield from holders(value[key])


# --- the promise


def outcome(data: bytes) -> str:
    """The way that bytes end: `refused`, `judged`, or the rule of a policy.

    Raises whatever is not InvalidProgram; AssertionError if a parsed program breaks a promise.
    """
    try:
        program = loads(data)
    except InvalidProgram as error:
        message = str(error)
    else:
        return _judged(program)
    assert message.isprintable()
    assert len(message) < 1000
    return "refused"


def _judged(program: Program) -> str:
    assert loads(dumps(program)) == program
    assert_inside(program)
    explain(program)
    facts = ProblemFacts(
        num_bytes=4096, kinds=facts_of(program).kinds, needed_inputs=frozenset({0})
    )
    found = [judge_policy(program, facts, policy) for policy in ("own", "hybrid")]
    refusal = found[0] or found[1]
    return refusal.rule if refusal else "judged"


def assert_inside(program: Program) -> None:
    """No element of a tensor lies outside its storage: counted without the code under test."""
    for tensor in program.tensors:
        if math.prod(tensor.shape):
            last = tensor.offset + sum(
                (size - 1) * stride
                for size, stride in zip(tensor.shape, tensor.strides, strict=True)
            )
            num_bytes = program.storages[tensor.storage].num_bytes
            assert 0 <= tensor.offset <= last
            assert (last + 1) * ITEM_BYTES[tensor.dtype] <= num_bytes
