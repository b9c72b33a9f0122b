"""The table of `forge doctor`, from drivers to the clock: each row on made-up facts."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from forge.commands.doctor import probe
from forge.commands.doctor.examine import (
    HostFacts,
    Mount,
    check_host,
    check_sandbox,
    read_container,
    read_devices,
    sandbox_flags,
)
from forge.process.devices import Vendor
from forge.process.environment import python_path
from tests.gpus import make_gpu

ROOT = Path(__file__).parents[3]
OK, WARNING, ERROR = probe.Severity.OK, probe.Severity.WARNING, probe.Severity.ERROR
CARD = make_gpu(capability=(9, 0))
NOW = datetime(2026, 11, 23, tzinfo=UTC).timestamp()
ALL = (1 << 41) - 1
HOST = HostFacts(
    capabilities=ALL, apparmor="unconfined", compiler="/usr/bin/cc", cores=8, shm_bytes=16 << 30,
    shm_free_bytes=16 << 30, memory_bytes=8 << 30, disk_bytes=8 << 30, now=NOW,
    mount=Mount(point="/", kind="ext4", source="/dev/sda"),
)  # fmt: skip
"""A machine with plenty of everything, and without GPUs."""
CONFINED: dict[str, Any] = {
    "container": "Docker", "capabilities": 0xA80425FB, "seccomp": 2, "apparmor": "docker-default",
    "masked": ["/proc/kcore", "/proc/sys"],
}  # fmt: skip
"""Docker's defaults."""
DOCKER = replace(HOST, **CONFINED)
IN_DOCKER = {"container": "Docker"}
ONE: dict[str, Any] = {"gpus": [CARD]}
TWO: dict[str, Any] = {"gpus": [CARD, replace(CARD, index=1)]}
NVIDIA: dict[str, Any] = {"on_bus": frozenset({Vendor.NVIDIA})}
AMD: dict[str, Any] = {"on_bus": frozenset({Vendor.AMD})}


def check(facts: HostFacts) -> dict[str, probe.Finding]:
    return {finding.name: finding for finding in check_host(facts)}


def nodes(*names: str) -> dict[str, Any]:
    return {"nodes": frozenset(names)}


def test_a_machine_with_plenty_of_everything_has_no_problem():
    found = check(HOST)
    assert {each.severity for each in found.values()} == {OK}
    assert all(not each.fix for each in found.values())
    assert {"system", "python", "C compiler", "cores", "memory", "file system"} <= set(found)
    assert not {"container", "NVIDIA driver", "AMD driver"} & set(found)
    in_order = {**AMD, **nodes("kfd", "dri/renderD128"), "is_kfd_open": True}
    assert set(check(replace(HOST, **in_order))) == set(found)


@pytest.mark.parametrize(
    ("changes", "name", "severity", "fix"),
    [
        ({"compiler": None}, "C compiler", WARNING, "apt install gcc"),
        ({"compiler": None, **ONE}, "C compiler", ERROR, "apt install gcc"),
        ({"nvml_fault": "Driver/library version mismatch"}, "NVIDIA driver", WARNING, "reboot"),
        ({**NVIDIA, **IN_DOCKER}, "NVIDIA driver", WARNING, "docker run --gpus all"),
        (NVIDIA, "NVIDIA driver", WARNING, "install NVIDIA's"),
        (nodes("nvidiactl"), "NVIDIA driver", WARNING, "nvidia-modprobe -u -c=0"),
        (
            {**AMD, **IN_DOCKER}, "AMD driver", WARNING,
            "--device /dev/kfd --device /dev/dri --group-add video --group-add render",
        ),
        (AMD, "AMD driver", WARNING, "amdgpu-install"),
        ({**nodes("kfd"), **IN_DOCKER}, "AMD driver", WARNING, "--device /dev/dri"),
        (nodes("kfd", "dri/renderD128"), "AMD driver", WARNING, "usermod -aG render,video"),
        ({"num_files": 40}, "open files", ERROR, "ulimit -n 65536"),
        ({"num_files": 512}, "open files", WARNING, "ulimit -n 65536"),
        ({"num_files": 512, **IN_DOCKER}, "open files", WARNING, "--ulimit nofile=65536"),
        ({"num_tasks": 60}, "processes", ERROR, "ulimit -u"),
        ({"num_tasks": 60, **IN_DOCKER}, "processes", ERROR, "--ulimit nproc=-1"),
        ({"group_tasks": 512}, "processes of the container", WARNING, "--pids-limit=-1"),
        ({"address_bytes": 4 << 30}, "address space", ERROR, "ulimit -v unlimited"),
        ({"address_bytes": 8 << 30}, "address space", WARNING, "ulimit -v unlimited"),
        ({"address_bytes": 512 << 30, **ONE}, "address space", ERROR, "ulimit -v"),
        ({"address_bytes": 512 << 30}, "address space", OK, ""),
        ({"locked_bytes": 8 << 20, **TWO}, "locked memory", OK, ""),
        (
            {"locked_bytes": 64 << 10, **TWO, **IN_DOCKER}, "locked memory", WARNING,
            "--ulimit memlock=-1",
        ),
        (
            {"locked_bytes": 8 << 20, "has_infiniband": True}, "locked memory", WARNING,
            "ulimit -l unlimited",
        ),
        (
            {"shm_free_bytes": 64 << 20, **TWO, **IN_DOCKER}, "/dev/shm", WARNING,
            "docker run --shm-size=16g",
        ),
        ({"shm_bytes": 64 << 20, "shm_free_bytes": 64 << 20}, "/dev/shm", OK, ""),
        ({"shm_free_bytes": 1 << 20}, "/dev/shm", WARNING, "remove old files"),
        ({"shm_bytes": 1 << 20, "shm_free_bytes": 1 << 20}, "/dev/shm", WARNING, "mount"),
        ({"shm_bytes": 0}, "/dev/shm", WARNING, "mount"),
        ({"shm_bytes": 0, **ONE}, "/dev/shm", ERROR, "mount"),
        ({"cpu_quota": 2.5, **IN_DOCKER}, "cores", WARNING, "--cpuset-cpus=0-1"),
        ({"cpu_quota": 8.0}, "cores", OK, ""),
        ({"memory_bytes": 2 << 30}, "memory", ERROR, "--memory"),
        ({"disk_bytes": 1 << 30}, "disk", ERROR, "--store DIR"),
        (
            {"mount": Mount(point="/home", kind="nfs4", source="filer:/home")}, "file system",
            ERROR, "--store DIR on a local disk",
        ),
        ({"now": 0.0}, "clock", WARNING, "set-ntp"),
    ],
)  # fmt: skip
def test_a_row_has_its_severity_and_fix(changes, name, severity, fix):
    found = check(replace(HOST, **changes))
    assert found[name].severity is severity
    assert fix in found[name].fix
    assert bool(found[name].fix) == bool(fix)
    assert all(each.severity is OK for each in found.values() if each.name != name)


def test_gpus_are_found_on_the_pci_bus_and_in_dev(tmp_path):
    for slot, vendor, kind in (
        ("0000:01:00.0", "0x10de", "0x030200"),
        ("0000:02:00.0", "0x1002", "0x120000"),
        ("0000:03:00.0", "0x10de", "0x040300"),
    ):
        folder = tmp_path / "sys/bus/pci/devices" / slot
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
    (tmp_path / "dev/dri").mkdir(parents=True)
    for name in ("nvidiactl", "kfd", "dri/renderD128", "dri/card0"):
        (tmp_path / "dev" / name).touch()
    found = read_devices(root=tmp_path)
    assert found["on_bus"] == {Vendor.NVIDIA, Vendor.AMD}
    assert found["nodes"] == {"nvidiactl", "kfd", "dri/renderD128"}
    assert found["is_kfd_open"]
    (tmp_path / "sys/bus/pci/devices/0000:02:00.0/class").write_text("0x040300\n")
    assert read_devices(root=tmp_path)["on_bus"] == {Vendor.NVIDIA}


def test_the_flags_that_dockers_default_lacks_are_named():
    assert sandbox_flags(DOCKER) == [
        "--cap-add SYS_ADMIN",
        "--security-opt seccomp=unconfined",
        "--security-opt apparmor=unconfined",
        "--security-opt systempaths=unconfined",
    ]
    assert check(DOCKER)["container"].found == (
        "Docker: no CAP_SYS_ADMIN, a seccomp filter, AppArmor's docker-default, a masked /proc"
    )
    assert sandbox_flags(replace(DOCKER, capabilities=ALL, apparmor="")) == [
        "--security-opt systempaths=unconfined"
    ]
    assert sandbox_flags(replace(DOCKER, uid=1000, apparmor="", masked=())) == [
        "--security-opt seccomp=unconfined"
    ]
    assert sandbox_flags(HOST) == []


REFUSED = "namespaces: unshare: Operation not permitted"
USER = replace(HOST, uid=1000, capabilities=0)


@pytest.mark.parametrize(
    ("level", "refused", "facts", "severity", "fix"),
    [
        ("namespaces", [], replace(HOST, **ONE), OK, ""),
        ("landlock", [REFUSED], DOCKER, WARNING, "docker run --cap-add SYS_ADMIN --security-opt"),
        ("landlock", [REFUSED], replace(DOCKER, **ONE), ERROR, "systempaths=unconfined"),
        (None, [REFUSED], USER, ERROR, "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"),
        (None, [REFUSED], USER, ERROR, 'judge.isolation = "none"'),
    ],
)
def test_a_sandbox_weaker_than_needed_has_the_flags_or_the_sysctl_that_it_lacks(
    level, refused, facts, severity, fix
):
    answer = {"level": level, "refused": refused, "serves_gpus": not refused}
    sysctls = {"kernel.apparmor_restrict_unprivileged_userns": "1"}
    found = check_sandbox(probe.Outcome(answers=(answer,)), facts, sysctls=sysctls)
    assert found.severity is severity
    assert (level or "none") in found.found
    assert all(each in found.found for each in refused)
    assert fix in found.fix


def test_a_container_is_read_from_proc(tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    own = tmp_path / "proc/self"
    (own / "attr").mkdir(parents=True)
    (own / "status").write_text("Name:\tx\nCapEff:\t00000000a80425fb\nSeccomp:\t2\n")
    (own / "attr/current").write_text("docker-default (enforce)\n")
    mounts = ("/", "/proc", "/proc/kcore", "/proc/sys/fs/binfmt_misc", "/proc/sys")
    lines = [f"1 0 0:1 / {at} rw - tmpfs tmpfs rw" for at in mounts]
    (own / "mountinfo").write_text("\n".join(lines))
    (tmp_path / ".dockerenv").touch()
    assert read_container(root=tmp_path) == {**CONFINED, "uid": os.geteuid()}
    assert read_container(root=tmp_path / "absent")["container"] == ""


def test_warnings_do_not_stop_a_run_and_errors_do():
    fine, warned = probe.Finding(name="a", found="b"), probe.warning("c", "d", fix="e")
    assert probe.can_run([fine, warned])
    assert probe.summarize([fine, warned]) == "0 errors, 1 warning: a run can start on this machine"
    broken = [fine, warned, probe.error("f", "g", fix="h")]
    assert not probe.can_run(broken)
    assert probe.summarize(broken) == "1 error, 1 warning: a run could not start on this machine"
    assert probe.to_json(broken) == {
        "schema": 1,
        "ok": False,
        "findings": [
            {"name": "a", "found": "b", "severity": "ok", "fix": ""},
            {"name": "c", "found": "d", "severity": "warning", "fix": "e"},
            {"name": "f", "found": "g", "severity": "error", "fix": "h"},
        ],
    }


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_command_checks_all_and_ends_with_3_for_a_vllm_that_does_not_import(tmp_path):
    fault = "libcudart.so.13: cannot open shared object file"
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text(f"raise ImportError({fault!r})\n")
    env = f'env = {{ PYTHONPATH = "{tmp_path}{os.pathsep}{python_path()}" }}'
    text = (ROOT / "experiments" / "quickstart.toml").read_text(encoding="utf-8")
    assert "\n[serve]\n" in text
    experiment = tmp_path / "x.toml"
    experiment.write_text(text.replace("\n[serve]\n", f'\n[serve]\nengine = "vllm"\n{env}\n'))
    with tempfile.TemporaryDirectory(dir="/tmp") as own_tmp:
        done = subprocess.run(
            [sys.executable, "-m", "forge", "doctor", str(experiment), "--json"],
            capture_output=True, text=True, timeout=280, check=False, cwd=ROOT,
            env=os.environ | {"TMPDIR": own_tmp},
        )  # fmt: skip
        assert list(Path(own_tmp).glob("forge-*")) == [], "the probes leave no directory"
    assert done.returncode == 3, done.stderr
    printed = json.loads(done.stdout)
    assert (printed["schema"], printed["ok"]) == (1, False)
    found = {each["name"]: each for each in printed["findings"]}
    assert found["engine vllm"]["severity"] == "error"
    assert found["engine vllm"]["found"].endswith(f"ImportError: {fault}")
    expected = {
        *("system", "python", "C compiler", "torch", "triton", "transformers", "peft", "datasets"),
        *("trl", "engine llama", "engine vllm", "engine hf", "engine of runs", "sandbox"),
        *("open files", "processes", "address space", "locked memory", "/dev/shm", "cores"),
        *("memory", "file system", "sockets", "clock"),
    }
    assert expected <= set(found)
    assert any(name.startswith(("kernel on GPU", "kernel on the CPU")) for name in found)
    for each in printed["findings"]:
        assert set(each) == {"name", "severity", "found", "fix"}
        assert each["fix"] or each["severity"] == "ok", each
