"""Compiled kernels on their way between two judges' caches."""

from __future__ import annotations

import base64
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from forge.evalpool.judge.compiler import cache
from forge.evalpool.judge.compiler.binary import Binary
from forge.evalpool.judge.compiler.cache import Cache, exchange
from forge.evalpool.judge.compiler.compile import Compiler
from forge.evalpool.wire import KernelsBody
from forge.process.server.bodies import parse_body
from forge.process.server.door import Refused
from tests.evalpool.compiler.kernels import TARGET, make_kernel

if TYPE_CHECKING:
    from forge.evalpool.judge.children.spawner import Spawner
    from tests.evalpool.compiler.forkserver import ForkServer


@pytest.fixture(scope="module")
def binary(compiler: Compiler) -> Binary:
    (made,) = compiler.compile([make_kernel()], TARGET)
    assert isinstance(made, Binary)
    return made


def test_what_one_judge_compiled_is_in_the_other_caches_and_does_not_come_back(
    tmp_path: Path, binary: Binary
) -> None:
    one, other = Cache(tmp_path / "one"), Cache(tmp_path / "other")
    one.put(binary)
    answer = exchange(one, since=0, entries=[])
    assert answer["next"] == 1
    assert exchange(one, since=1, entries=[]) == {"next": 1, "entries": []}
    back = exchange(other, since=0, entries=answer["entries"])
    assert back == {"next": 0, "entries": []}
    assert other.recall(binary.key) is None  # from disk, so that a sample is compiled again
    assert other.get(binary.key) == binary


def test_a_kernel_that_travelled_is_compiled_again_as_one_from_the_disk(
    tmp_path: Path, server: ForkServer, binary: Binary
) -> None:
    given, own = Cache(None), Cache(tmp_path)
    given.put(dataclasses.replace(binary, shared_bytes=16))  # another judge's mistake, or worse
    exchange(own, since=0, entries=exchange(given, since=0, entries=[])["entries"])
    compiler = Compiler(cast("Spawner", server), cache=own, recheck_share=1.0)
    compiler.compile([make_kernel()], TARGET)
    compiler.close()
    assert compiler.num_unequal == 1
    assert Cache(tmp_path).get(binary.key) == binary


@pytest.mark.parametrize("damage", ["byte", "truncated", "no base64", "key", "code"])
def test_a_damaged_kernel_is_not_kept(
    tmp_path: Path, binary: Binary, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    if damage == "key":
        binary = dataclasses.replace(binary, key="../" + binary.key[3:])
    if damage == "code":
        binary = dataclasses.replace(binary, name="another")
    given = Cache(None)
    given.put(binary)
    data = given.give(binary.key)
    assert data is not None
    data = data[:-1] + bytes([data[-1] ^ 1]) if damage == "byte" else data
    entry = base64.b64encode(data[:50] if damage == "truncated" else data).decode()
    entry = "%%" if damage == "no base64" else entry
    exchange(Cache(tmp_path), since=0, entries=[entry])
    assert list(tmp_path.rglob("*")) == []
    assert "is not kept" in caplog.text


def test_an_answer_is_bounded_and_the_next_one_goes_on(
    binary: Binary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MAX_ANSWER_BYTES", 1)
    kept = Cache(None)
    for number in range(3):
        kept.put(dataclasses.replace(binary, key=f"{number:064x}"))
    found: list[str] = []
    since = 0
    for expected in (1, 2, 3, 3):
        answer = exchange(kept, since=since, entries=[])
        since = answer["next"]
        found += answer["entries"]
        assert since == expected
    assert len(set(found)) == len(found) == 3


@pytest.mark.parametrize(
    "body",
    [{}, {"since": -1, "entries": []}, {"since": 0, "entries": "x"}, {"since": 0, "entries": [1]}],
)
def test_another_request_is_refused(body: dict[str, Any]) -> None:
    assert parse_body(KernelsBody, {"since": 0, "entries": ["x"]}).entries == ["x"]
    with pytest.raises(Refused):
        parse_body(KernelsBody, body)
