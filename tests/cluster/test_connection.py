"""Clusters that cannot be connected to: one line each, with what is allowed."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from forge.cluster import nodes
from forge.cluster.nodes import connect, explain, import_ray
from forge.errors import ChildDied, ConfigError, ForgeError, MachineError, pip_install
from forge.process.logtail import logged_error


def ray_that_raises(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def init(**_settings: Any) -> None:
        raise error

    monkeypatch.setattr(nodes, "import_ray", lambda: SimpleNamespace(init=init))


def line_of(address: str, kind: type[ForgeError] = MachineError) -> str:
    with pytest.raises(kind) as raised:
        connect(address)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_missing_package_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named '{name}'")

    monkeypatch.setattr(nodes.importlib, "import_module", absent)
    with pytest.raises(MachineError, match="needs ray, which is not installed") as raised:
        import_ray()
    assert str(raised.value).endswith(pip_install("ray"))


def test_an_address_that_nobody_answers_is_said_without_asking_ray(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray_that_raises(monkeypatch, AssertionError("asked"))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    line = line_of(f"127.0.0.1:{port}")
    assert f"cluster.address: nobody answers at 127.0.0.1:{port}: Connection refused" in line
    assert "nobody answers at no.such.host.invalid:6379" in line_of("no.such.host.invalid:6379")


def test_a_port_out_of_range_is_a_mistake_in_the_experiment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
def test_errors_of_ray_are_one_line(
    error: Exception, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_that_raises(monkeypatch, error)
    assert line_of("auto").startswith(expected)


def test_the_brokers_own_error_is_shown_without_its_log() -> None:
    log = "cluster died 2 s after start: exit 3. Last lines of cluster.log:\n"
    died = ChildDied(f"{log}2026 ERROR __main__: MachineError: nobody answers at x:1\nmore")
    shown = logged_error(died, MachineError)
    assert (type(shown), str(shown)) == (MachineError, "nobody answers at x:1")
    other = ChildDied(f"{log}Traceback")
    assert logged_error(other, MachineError) is None


def test_a_node_without_forge_and_a_lost_one_are_one_line() -> None:
    absent = RuntimeError("The actor died.\nModuleNotFoundError: No module named 'forge.cluster'")
    assert explain(absent) == (
        "its node has no forge: install the same commit there, in the Python that runs Ray"
    )
    lost = RuntimeError("The actor died.\n\tid: 12\nThe node was terminated.\n")
    assert explain(lost) == "its host is gone: The node was terminated."
