"""Kernels become binaries, failures and cache entries."""

import dataclasses
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from forge.evalpool.judge.children.spawner import Spawner
from forge.evalpool.judge.compiler import compile as compile_module
from forge.evalpool.judge.compiler.binary import (
    Binary,
    Failure,
    FailureKind,
    over_limits,
    parse_binary,
)
from forge.evalpool.judge.compiler.compile import Cache, Compiler, key_of
from forge.evalpool.judge.program.format import Options
from forge.evalpool.judge.program.readers import InvalidProgram
from tests.evalpool.benches import Bench
from tests.evalpool.compiler.kernels import DOUBLE, TARGET, make_kernel, with_operation


@pytest.fixture(scope="session")
def binary(compiler: Compiler) -> Binary:
    (made,) = compiler.compile([make_kernel()], TARGET)
    assert isinstance(made, Binary), made
    return made


def test_a_kernel_becomes_a_binary(binary: Binary) -> None:
    assert (binary.name, binary.target, binary.num_warps) == ("double", TARGET, 4)
    assert 0 < binary.num_registers < 64
    assert binary.num_spills == 0


def test_equal_kernels_are_compiled_once(compiler: Compiler, spawned: list[int]) -> None:
    before = len(spawned)
    kernel = make_kernel(DOUBLE.replace("addf", "mulf"))
    made = compiler.compile([kernel] * 5, TARGET)
    again = compiler.compile([kernel], TARGET)
    assert len(spawned) == before + 1
    assert all(one == again[0] for one in made)
    assert isinstance(again[0], Binary)


def test_a_kernel_of_small_tiles_is_not_compiled_to_know_that_it_fits(
    compiler: Compiler, spawned: list[int]
) -> None:
    before = len(spawned)
    assert compiler.too_large([make_kernel()], TARGET) == [None]
    assert len(spawned) == before


def test_a_failure_stands_at_the_kernels_own_line(compiler: Compiler) -> None:
    text = DOUBLE.replace("tensor<128xi32>\n    %3", "tensor<64xi32>\n    %3")
    kernels = [make_kernel(text, lines=tuple(range(at, at + 20))) for at in (10, 50)]
    found = compiler.compile(kernels, TARGET)
    assert [one.kind for one in found if isinstance(one, Failure)] == ["compile_error"] * 2
    assert [one.line for one in found if isinstance(one, Failure)] == [14, 54]


def test_a_refused_word_needs_no_child(compiler: Compiler, spawned: list[int]) -> None:
    before = len(spawned)
    (found,) = compiler.compile([with_operation("nvvm.barrier0")], TARGET)
    assert isinstance(found, Failure)
    assert found.message.startswith("nvvm.barrier0: ")
    assert len(spawned) == before


def test_a_module_that_is_refused_names_its_operation(compiler: Compiler) -> None:
    kernel = make_kernel(types=("*fp32", "*fp16"))
    (found,) = compiler.compile([kernel], TARGET)
    assert isinstance(found, Failure)
    assert found.message.startswith("tt.func: takes")


def test_a_text_that_crashes_the_parser_is_its_kernels_failure(compiler: Compiler) -> None:
    deep = "scf.if %t {\n" * 5000 + "}\n" * 5000
    text = DOUBLE.replace("    tt.return", f"    %t = arith.constant true\n{deep}    tt.return")
    (found,) = compiler.compile([make_kernel(text)], TARGET)
    assert isinstance(found, Failure)
    assert found.kind is FailureKind.COMPILE_ERROR
    assert found.message.startswith("the compiler crashed: killed by signal 11")


def test_all_kernels_of_a_call_have_one_budget(compiler: Compiler) -> None:
    kernels = [make_kernel(DOUBLE.replace("128", str(size))) for size in (256, 512)]
    found = compiler.compile(kernels, TARGET, budget_s=0.01)
    assert [one.message for one in found if isinstance(one, Failure)] == [
        "2 kernels are not compiled within 0.01 s"
    ] * 2
    later = compiler.compile(kernels, TARGET)
    assert all(isinstance(one, Binary) for one in later)


def test_a_target_that_nobody_has_is_a_failure(compiler: Compiler) -> None:
    (found,) = compiler.compile([make_kernel()], "cuda:sm90:32")
    assert isinstance(found, Failure)
    assert "is no target" in found.message


@pytest.mark.parametrize(
    ("end", "words"),
    [("killed", "crashed: killed by signal 9"), ("silent", "not compiled within 0.01 s")],
)
def test_a_child_that_ends_is_its_kernels_failure(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, end: str, words: str
) -> None:
    spawn = Spawner.spawn

    def spawn_and_kill(self: Spawner, **arguments: Any) -> Any:
        child = spawn(self, **arguments)
        os.kill(child.pid_here, signal.SIGKILL)
        return child

    if end == "killed":
        monkeypatch.setattr(Spawner, "spawn", spawn_and_kill)
    monkeypatch.setattr(compile_module, "DEADLINE_S", 0.01 if end == "silent" else 60.0)
    own = Compiler(bench.spawner, cache=Cache(None))
    (found,) = own.compile([make_kernel(DOUBLE.replace("addf", "subf"))], TARGET)
    own.close()
    assert isinstance(found, Failure)
    assert found.kind is FailureKind.COMPILE_ERROR
    assert words in found.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", "other name"),
        ("num_warps", 0),
        ("num_warps", True),
        ("shared_bytes", -1),
        ("key", "0"),
        ("tensor_maps", [{}]),
        ("num_registers", 1 << 40),
        ("more", 1),
    ],
)
def test_a_header_is_not_believed(binary: Binary, name: str, value: object) -> None:
    header = json.loads(json.dumps(binary.header()))
    assert parse_binary(header, binary.code) == binary
    with pytest.raises(InvalidProgram, match=name):
        parse_binary(header | {name: value}, binary.code)


def test_a_launch_over_the_cards_limits_is_named(binary: Binary) -> None:
    assert over_limits(binary) == ""
    large = dataclasses.replace(binary, shared_bytes=300_000)
    assert over_limits(large).startswith(
        "out of resource: shared memory, Required: 300000, Hardware limit: 232448"
    )
    assert "threads" in over_limits(dataclasses.replace(binary, num_warps=64))


def test_a_key_is_of_all_that_a_binary_depends_on() -> None:
    kernel = make_kernel()
    facts: dict[str, Any] = {"target": TARGET, "version": "3.9.0"}
    keys = {
        key_of(kernel, **facts),
        key_of(kernel, **{**facts, "target": "cuda:80:32"}),
        key_of(kernel, **{**facts, "version": "3.6.0"}),
        key_of(make_kernel(options=Options(num_warps=8)), **facts),
        key_of(make_kernel(DOUBLE + "\n"), **facts),
        key_of(make_kernel(types=("*fp32", "*fp16")), **facts),
    }
    assert len(keys) == 6
    assert key_of(make_kernel(lines=(1, 2)), **facts) == key_of(kernel, **facts)


class TestCache:
    """Files of compiled kernels."""

    def test_an_entry_outlives_the_judge(self, tmp_path: Path, binary: Binary) -> None:
        Cache(tmp_path / "kernels").put(binary)
        assert Cache(tmp_path / "kernels").get(binary.key) == binary
        (path,) = (tmp_path / "kernels").glob("??/*")
        assert path.stat().st_mode & 0o077 == 0

    @pytest.mark.parametrize("damage", ["byte", "truncated", "other key"])
    def test_a_damaged_entry_is_absent(self, tmp_path: Path, binary: Binary, damage: str) -> None:
        Cache(tmp_path).put(binary)
        (path,) = tmp_path.glob("??/*")
        data = path.read_bytes()
        key = binary.key
        if damage == "byte":
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        elif damage == "truncated":
            path.write_bytes(data[:100])
        else:
            key = binary.key[:2] + "0" * 62
            path.rename(path.parent / key[2:])
        assert Cache(tmp_path).get(key) is None

    def test_the_oldest_entries_go(
        self, tmp_path: Path, binary: Binary, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        size = len(binary.code) + len(json.dumps(binary.header())) + 36
        monkeypatch.setattr(compile_module, "MAX_DISK_BYTES", 4 * size)
        cache = Cache(tmp_path)
        keys = [f"{number:02x}" + "0" * 62 for number in range(6)]
        for number, key in enumerate(keys):
            cache.put(dataclasses.replace(binary, key=key))
            path = tmp_path / key[:2] / key[2:]
            if path.exists():
                stamp = time.time() - 1000 + number
                os.utime(path, (stamp, stamp))
        fresh = Cache(tmp_path)
        assert [fresh.get(key) is not None for key in keys][-1]
        assert sum(path.stat().st_size for path in tmp_path.glob("??/*")) <= 4 * size
        assert fresh.get(keys[0]) is None

    def test_a_folder_of_others_is_not_used(self, tmp_path: Path, binary: Binary) -> None:
        tmp_path.chmod(0o777)
        cache = Cache(tmp_path)
        cache.put(binary)
        assert list(tmp_path.iterdir()) == []
        assert cache.get(binary.key) == binary


def test_many_threads_share_a_compiler(compiler: Compiler) -> None:
    kernels = [make_kernel(DOUBLE.replace("addf", name)) for name in ("maximumf", "minimumf")]
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.append(compiler.compile(kernels, TARGET)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(one == results[0] for one in results)
