"""Environment, devices, sockets, disk, logs and clocks of children, and the environment of a
trainer's ranks.
"""

import errno
import os
import sqlite3
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import pytest

from forge.errors import ConfigError
from forge.process import devices
from forge.process.busy import BusyClock
from forge.process.child import read_ending, read_last_lines
from forge.process.devices import visibility
from forge.process.environment import Rendezvous, child_env, rank_envs
from forge.process.machine import is_disk_full
from forge.process.sockets import check_socket_path, open_private_dir, open_socket_dir
from tests.gpus import make_gpu

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
HOST = "127.0.0.1"


def test_a_cpu_child_sees_no_gpu_and_no_secret(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("HF_TOKEN", "hf_s3cr3t")
    monkeypatch.setenv("WANDB_API_KEY", "s3cr3t")
    env = child_env(threads=3, extra={"HSA_X": "1"})
    assert env["CUDA_VISIBLE_DEVICES"] == env["GGML_VK_VISIBLE_DEVICES"] == ""
    assert (env["OMP_NUM_THREADS"], env["OMP_WAIT_POLICY"], env["HSA_X"]) == ("3", "passive", "1")
    assert "s3cr3t" not in " ".join(env.values())
    assert env["PATH"] == os.environ["PATH"]


def test_a_child_imports_nothing_from_the_working_directory(tmp_path):
    (tmp_path / "random.py").write_text("raise RuntimeError('not the library')")
    (tmp_path / "forge").mkdir()
    (tmp_path / "forge/__init__.py").touch()
    command = [sys.executable, "-c", "import random, forge.errors"]
    subprocess.run(command, cwd=tmp_path, env=child_env(threads=1), timeout=60, check=True)


def test_an_nvidia_child_is_pinned_by_uuid_in_pci_order():
    cards = [make_gpu(0), make_gpu(1, uuid="GPU-11")]
    assert visibility(["GPU-11"], gpus=cards) == {
        "CUDA_VISIBLE_DEVICES": "GPU-11",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GGML_VK_VISIBLE_DEVICES": "1",
    }


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, [0, 1, 2]), ("", []), ("2,0", [2, 0]), ("GPU-1", [1]), ("1,9,0", [1]), ("-1", []),
        ("1,1", []), ("GPU-2,2", []), ("GPU-", []), ("1,GPU-,0", [1]),
    ],
)  # fmt: skip
def test_gpus_hidden_by_the_user_are_hidden_from_forge_by_cudas_rules(variable, expected):
    cards = [make_gpu(index, uuid=f"GPU-{index}{index}") for index in range(3)]
    assert [gpu.index for gpu in devices._visible(cards, variable)] == expected


def test_a_gpu_that_fell_off_the_bus_is_left_out(monkeypatch, caplog):
    class Lost(Exception):
        pass

    def find(index):
        if index == 1:
            raise Lost("GPU is lost")
        return index

    nvml = types.SimpleNamespace(
        NVMLError=Lost,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 3,
        nvmlDeviceGetHandleByIndex=find,
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(total=2, free=1),
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
        nvmlDeviceGetName=lambda handle: "card",
        nvmlDeviceGetMinorNumber=lambda handle: handle,
        nvmlDeviceGetCudaComputeCapability=lambda handle: [9, 0],
        nvmlDeviceGetMigMode=lambda handle: (handle == 2, False),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(devices.Path, "exists", lambda path: True)
    assert [(gpu.index, gpu.is_cut) for gpu in devices._nvidia_gpus()] == [(0, False), (2, True)]
    assert {gpu.capability for gpu in devices._nvidia_gpus()} == {(9, 0)}
    assert "GPU 1 does not answer and is left out: GPU is lost" in caplog.text


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [("HF_TOKEN", True), ("TOKEN", True), ("SECRET", True), ("PGPASSWORD", True),
     ("DATABASE_URL", True), ("openai_api_key", True), ("AWS_SECRET_ACCESS_KEY", True),
     ("SENTRY_DSN", True), ("PATH", False), ("TOKENIZERS_PARALLELISM", False), ("KEYBOARD", False)],
)  # fmt: skip
def test_variables_named_like_secrets_are_not_passed_on(monkeypatch, name, is_secret):
    monkeypatch.setenv(name, "x")
    assert (name not in child_env(threads=1)) is is_secret


def test_the_socket_directory_is_private_short_and_removed():
    with open_socket_dir() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "x.sock").touch()
    assert not folder.exists()


@pytest.fixture
def short_dir():
    """A directory with a short path for sockets; pytest's are too deep on a worker."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_the_private_directories_of_a_killed_owner_are_removed_and_nothing_else(short_dir):
    code = (
        "import os, sys; from pathlib import Path; from forge.process.sockets import *;"
        "parent = Path(sys.argv[1]); opened = open_socket_dir(base=parent);"
        "of_server = open_private_dir(parent, prefix='.serve-');"
        "print(opened.__enter__(), of_server.__enter__(), flush=True); os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", code, str(short_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    killed, of_server = map(Path, done.stdout.split())
    (killed / "model.gguf").touch()
    (short_dir / "forge-of-somebody-else").mkdir()
    with open_socket_dir(base=short_dir) as first, open_socket_dir(base=short_dir) as second:
        assert not killed.exists()
        assert first.exists(), "its owner lives"
        assert second.exists()
        assert of_server.exists(), "it has another prefix"
    with open_private_dir(short_dir, prefix=".serve-"):
        assert not of_server.exists()
    assert [path.name for path in short_dir.iterdir()] == ["forge-of-somebody-else"]


def test_a_socket_path_that_would_be_too_long_is_a_config_error_with_advice(tmp_path):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    with pytest.raises(ConfigError, match=r"the kernel allows 107. Set TMPDIR"):
        open_socket_dir(base=deep).__enter__()
    with pytest.raises(ConfigError, match="socket path of 112 bytes"):
        check_socket_path(Path("/" + "é" * 55 + "."))


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (OSError(errno.ENOSPC, "no space"), True),
        (OSError(errno.EDQUOT, "quota"), True),
        (OSError(errno.ENOENT, "no file"), False),
        (sqlite3.OperationalError("database or disk is full"), True),
        (sqlite3.OperationalError("no such table"), False),
        (ValueError("disk is full"), False),
    ],
)
def test_only_a_full_disk_is_recognised_as_one(error, is_full):
    assert is_disk_full(error) is is_full


def test_log_lines_have_no_control_characters(tmp_path):
    path = tmp_path / "x.log"
    path.write_bytes(b"one\n\x1b[31mtwo\x1b[0m\n\n\xff three\n")
    assert read_last_lines(path, num_lines=2) == "[31mtwo[0m\n\N{REPLACEMENT CHARACTER} three"
    assert read_last_lines(tmp_path / "none.log", num_lines=2) == ""


def test_the_ending_of_a_log_has_the_exception_above_a_longer_list(tmp_path):
    path = tmp_path / "x.log"
    error = "Traceback (most recent call last):\n  File x\nValueError: no\n"
    path.write_text(error + "leaked\n" * 30)
    assert read_ending(path, num_lines=4) == "ValueError: no\n...\nleaked\nleaked"
    path.write_text("begun\n" * 30 + error)
    assert read_ending(path, num_lines=2) == "  File x\nValueError: no"


def test_busy_seconds_count_overlapping_requests_once():
    times = iter([0.0, 5.0, 8.0])
    clock = BusyClock(now=lambda: next(times))
    with clock.running(), clock.running():
        pass
    assert clock.busy_s == 5.0


def test_ranks_of_one_machine_count_from_0_and_meet_at_a_port_that_is_free() -> None:
    first, second = rank_envs(2)
    assert [first[name] for name in NAMES] == ["0", "0", "2", "2"]
    assert [second[name] for name in NAMES] == ["1", "1", "2", "2"]
    assert (second["MASTER_ADDR"], second["MASTER_PORT"]) == (HOST, first["MASTER_PORT"])
    assert first.get("GLOO_SOCKET_IFNAME") == os.environ.get("GLOO_SOCKET_IFNAME")


def test_ranks_of_a_second_machine_count_on_and_listen_at_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "mine")
    meeting = Rendezvous(address="10.1.2.3", port=4711, host=HOST, first=4, num_here=2)
    first, second = rank_envs(6, meeting=meeting)
    assert [first[name] for name in NAMES] == ["4", "0", "6", "2"]
    assert [second[name] for name in NAMES] == ["5", "1", "6", "2"]
    assert (first["MASTER_ADDR"], first["MASTER_PORT"]) == ("10.1.2.3", "4711")
    assert first["GLOO_SOCKET_IFNAME"] == "lo"
    assert first["NCCL_SOCKET_IFNAME"] == "mine", "the user's own choice stays"
