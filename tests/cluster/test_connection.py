"""The connection to a cluster, and weights on their way through its object store."""

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import numpy as np
import pytest

from forge.cluster import host, nodes
from forge.cluster.host import pack, unpack, weights_key
from forge.cluster.nodes import connect, explain, import_ray
from forge.errors import ChildDied, ConfigError, ForgeError, MachineError, pip_install
from forge.process.child import logged_error
from tests.cluster.fake_ray import FakeRef


def ray_that_raises(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def init(**_settings: Any) -> None:
        raise error

    monkeypatch.setattr(nodes, "import_ray", lambda: SimpleNamespace(init=init))


def line_of(address: str, kind: type[ForgeError] = MachineError) -> str:
    with pytest.raises(kind) as raised:
        connect(address)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_missing_package_names_the_command_that_installs_it(monkeypatch):
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named '{name}'")

    monkeypatch.setattr(nodes.importlib, "import_module", absent)
    with pytest.raises(MachineError, match="needs ray, which is not installed") as raised:
        import_ray()
    assert str(raised.value).endswith(pip_install("ray"))


def test_an_address_that_nobody_answers_is_said_without_asking_ray(monkeypatch):
    ray_that_raises(monkeypatch, AssertionError("asked"))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    line = line_of(f"127.0.0.1:{port}")
    assert f"cluster.address: no node answers at 127.0.0.1:{port}: Connection refused" in line
    assert "no node answers at no.such.host.invalid:6379" in line_of("no.such.host.invalid:6379")


def test_a_port_out_of_range_is_a_mistake_in_the_experiment(monkeypatch):
    ray_that_raises(monkeypatch, AssertionError("asked"))
    assert 'found "head:99999"; Port out of range' in line_of("head:99999", ConfigError)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            RuntimeError("Ray:\nVersion mismatch: The cluster was started with:\n  Ray: 2.50.0"),
            "cluster.address: Version mismatch: The cluster was started with: Ray: 2.50.0; install",
        ),
        (
            ConnectionError("Could not find any running Ray instance."),
            'cluster.address = "auto": this machine is no node of a Ray cluster; "ray start',
        ),
        (ValueError("x" * 1000), f"cluster.address: auto: ValueError: {'x' * 400}"),
    ],
)
def test_errors_of_ray_are_one_line(error, expected, monkeypatch):
    ray_that_raises(monkeypatch, error)
    assert line_of("auto").startswith(expected)


def test_the_brokers_own_error_is_shown_without_its_log():
    log = "cluster died 2 s after start: exit 3. Last lines of cluster.log:\n"
    died = ChildDied(f"{log}2026 ERROR __main__: MachineError: nobody answers at x:1\nmore")
    shown = logged_error(died, MachineError)
    assert (type(shown), str(shown)) == (MachineError, "nobody answers at x:1")
    other = ChildDied(f"{log}Traceback")
    assert logged_error(other, MachineError) is None


def test_a_node_without_forge_and_a_lost_one_are_one_line():
    absent = RuntimeError("The actor died.\nModuleNotFoundError: No module named 'forge.cluster'")
    assert explain(absent) == (
        "its node has no forge: install the same commit there, in the Python that runs Ray"
    )
    lost = RuntimeError("The actor died.\n\tid: 12\nThe node was terminated.\n")
    assert explain(lost) == "its host is gone: The node was terminated."


def checkpoint(folder: Path) -> Path:
    (folder / "part").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(os.urandom(1000))
    (folder / "part" / "tokens.json").write_bytes(b"{}")
    (folder / "empty").write_bytes(b"")
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.parametrize("chunk_bytes", [1, 333, 1000, 4096])
def test_a_directory_arrives_whole(chunk_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(host, "CHUNK_BYTES", chunk_bytes)
    source = checkpoint(tmp_path / "source")
    anyio.run(unpack, pack(source, FakeRef), tmp_path / "copy")
    assert files_of(tmp_path / "copy") == files_of(source)


def test_a_missing_directory_is_one_line(tmp_path):
    for read in (weights_key, lambda path: pack(path, FakeRef)):
        with pytest.raises(MachineError, match=r"none: it cannot be read for a node: .*No such"):
            read(tmp_path / "none")


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x"])
def test_a_file_stays_below_its_directory(name, tmp_path):
    manifest: Any = [(name, [FakeRef(np.zeros(1, np.uint8))])]
    with pytest.raises(MachineError, match="a name below the directory"):
        anyio.run(unpack, manifest, tmp_path / "copy")


def test_two_chunks_fit_into_the_smallest_object_store_of_ray():
    smallest = 75 << 20  # OBJECT_STORE_MINIMUM_MEMORY_BYTES in ray/_private/ray_constants.py
    assert smallest >= 2 * host.CHUNK_BYTES
