"""Findings of `forge doctor` on the host: packages, drivers, devices, container, sandbox, limits,
storage, clock. Each on made-up facts."""

from __future__ import annotations

import os
import tomllib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from forge.commands.doctor import clock
from forge.commands.doctor.clock import ClockFacts, Stopwatch, check_clock
from forge.commands.doctor.container import (
    ContainerFacts,
    check_container,
    check_sandbox,
    read_container,
    sandbox_flags,
)
from forge.commands.doctor.drivers import DriverFacts, check_drivers, read_nodes
from forge.commands.doctor.finding import (
    Finding,
    Severity,
    can_run,
    error,
    summarize,
    to_json,
    warning,
)
from forge.commands.doctor.limits import LimitFacts, check_limits, read_limits
from forge.commands.doctor.probe import Outcome
from forge.commands.doctor.software import (
    NEEDS,
    PACKAGES,
    Imported,
    Imports,
    TorchBuild,
    check_compiler,
    check_packages,
)
from forge.commands.doctor.storage import check_room
from forge.process.devices import Gpu, Vendor

ROOT = Path(__file__).parents[3]
OK, WARNING, ERROR = Severity.OK, Severity.WARNING, Severity.ERROR
CARD = Gpu(
    vendor=Vendor.NVIDIA, index=0, uuid="GPU-0", name="H200", memory_bytes=1, free_bytes=1,
    capability=(9, 0),
)  # fmt: skip
AMD = replace(CARD, vendor=Vendor.AMD, capability=None)
ALL = (1 << 41) - 1
DOCKER = ContainerFacts(
    kind="Docker", uid=0, capabilities=0xA80425FB, seccomp=2, apparmor="docker-default",
    masked=["/proc/kcore", "/proc/sys"],
)  # fmt: skip
HOST = ContainerFacts(kind="", uid=0, capabilities=ALL, seccomp=0, apparmor="unconfined")
PLENTY = LimitFacts(
    num_files=None, num_tasks=None, locked_bytes=None, address_bytes=None, group_tasks=None,
    cpu_quota=None, cores=8, shm_bytes=16 << 30, shm_free_bytes=16 << 30,
)  # fmt: skip


def by_name(findings: Any) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


# Packages


def test_forges_own_requirements_are_those_of_pyproject() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    lines = [*extras["judge"], *extras["train"]]
    declared = {line.partition(";")[0].strip() for line in lines}
    assert {f"{name}{versions}" for name, versions in NEEDS.items()} <= declared
    assert set(NEEDS) == set(PACKAGES)


def test_a_package_that_does_not_import_is_an_error_with_its_words() -> None:
    packages = {name: Imported(version="1") for name in PACKAGES}
    packages["triton"] = Imported(fault="ImportError: libLLVM.so")
    packages["trl"] = Imported(fault="ModuleNotFoundError: ...", is_missing=True)
    found = by_name(check_packages(Imports(packages=packages, unmet=["peft needs torch>=9"])))
    assert found["torch"] == Finding(name="torch", found="1")
    assert found["triton"].severity is ERROR
    assert found["triton"].found == "does not import: ImportError: libLLVM.so"
    assert (found["trl"].severity, found["trl"].found) == (ERROR, "not installed")
    assert (found["versions"].severity, found["versions"].found) == (WARNING, "peft needs torch>=9")


def test_a_compiler_is_needed_where_there_are_gpus() -> None:
    assert check_compiler("/usr/bin/cc", has_gpus=True).severity is OK
    assert check_compiler(None, has_gpus=True).severity is ERROR
    assert check_compiler(None, has_gpus=False).severity is WARNING


# Drivers and devices


def build(cuda: str | None = None, hip: str | None = None) -> dict[str, TorchBuild]:
    return {"torch": TorchBuild(version="2.13.0", cuda=cuda, hip=hip)}


@pytest.mark.parametrize(
    ("cuda", "driver", "has_run", "severity"),
    [
        ("13.0", "580.65.06", False, OK),
        ("13.0", "575.57.08", False, ERROR),
        ("13.0", "575.57.08", True, WARNING),
        ("12.8", "525.60.13", False, OK),
        ("12.8", "470.82.01", False, ERROR),
        ("14.1", "570.10", False, ERROR),
        ("13.0", "", False, OK),
    ],
)
def test_the_driver_is_held_against_the_cuda_of_torch(
    cuda: str, driver: str, has_run: bool, severity: Severity
) -> None:
    facts = DriverFacts(
        gpus=[CARD], builds=build(cuda), nvidia_driver=driver, has_run=has_run,
        nodes=frozenset({"nvidiactl", "nvidia-uvm"}),
    )  # fmt: skip
    found = by_name(check_drivers(facts))
    assert found["CUDA"].severity is severity
    assert f"built for CUDA {cuda}" in found["CUDA"].found
    assert bool(found["CUDA"].fix) == (severity is not OK)


def test_a_torch_for_other_devices_is_an_error() -> None:
    found = by_name(check_drivers(DriverFacts(gpus=[CARD], builds=build())))
    assert (found["torch build"].severity, found["torch build"].fix) == (
        ERROR, "make setup TORCH=cuda",
    )  # fmt: skip
    found = by_name(check_drivers(DriverFacts(gpus=[AMD], builds=build("13.0"))))
    assert (found["torch build"].severity, found["torch build"].fix) == (
        ERROR, "make setup TORCH=rocm",
    )  # fmt: skip
    assert by_name(check_drivers(DriverFacts(builds=build()))) == {}


def test_rocm_has_a_minimum_for_triton() -> None:
    found = by_name(check_drivers(DriverFacts(gpus=[AMD], builds=build(hip="6.4.43482-0f2d60"))))
    assert found["ROCm"].severity is OK
    found = by_name(check_drivers(DriverFacts(gpus=[AMD], builds=build(hip="5.7.1"))))
    assert found["ROCm"].severity is ERROR
    assert "Triton needs 6.2" in found["ROCm"].found


def test_an_old_gpu_is_reported() -> None:
    old = replace(CARD, capability=(7, 5))
    found = by_name(check_drivers(DriverFacts(gpus=[old])))["compute capability"]
    assert (found.severity, found.found) == (WARNING, "GPU 0 has compute capability 7.5")


@pytest.mark.parametrize(
    ("facts", "name", "fix"),
    [
        (DriverFacts(nvml_fault="Driver/library version mismatch"), "NVIDIA driver", "reboot"),
        (
            DriverFacts(on_bus=frozenset({Vendor.NVIDIA}), is_container=True),
            "NVIDIA driver",
            "docker run --gpus all",
        ),
        (DriverFacts(on_bus=frozenset({Vendor.NVIDIA})), "NVIDIA driver", "install NVIDIA's"),
        (DriverFacts(nodes=frozenset({"nvidiactl"})), "NVIDIA driver", "nvidia-modprobe -u -c=0"),
        (
            DriverFacts(on_bus=frozenset({Vendor.AMD}), is_container=True),
            "AMD driver",
            "--device /dev/kfd --device /dev/dri --group-add video --group-add render",
        ),
        (DriverFacts(on_bus=frozenset({Vendor.AMD})), "AMD driver", "amdgpu-install"),
        (
            DriverFacts(nodes=frozenset({"kfd"}), is_container=True),
            "AMD driver",
            "--device /dev/dri",
        ),
        (
            DriverFacts(nodes=frozenset({"kfd", "dri/renderD128"})),
            "AMD driver",
            "usermod -aG render,video",
        ),
    ],
)
def test_a_missing_device_is_named_with_its_flag(facts: DriverFacts, name: str, fix: str) -> None:
    found = by_name(check_drivers(facts))[name]
    assert found.severity is WARNING
    assert fix in found.fix


def test_devices_in_good_order_are_no_finding() -> None:
    nodes = frozenset({"kfd", "dri/renderD128"})
    facts = DriverFacts(on_bus=frozenset({Vendor.AMD}), nodes=nodes, is_kfd_open=True)
    assert by_name(check_drivers(facts)) == {}


def test_gpus_are_found_on_the_pci_bus_and_in_dev(tmp_path: Path) -> None:
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
    found = read_nodes(root=tmp_path)
    assert found["on_bus"] == {Vendor.NVIDIA, Vendor.AMD}
    assert found["nodes"] == {"nvidiactl", "kfd", "dri/renderD128"}
    assert found["is_kfd_open"]
    (tmp_path / "sys/bus/pci/devices/0000:02:00.0/class").write_text("0x040300\n")
    assert read_nodes(root=tmp_path)["on_bus"] == {Vendor.NVIDIA}


# Container and sandbox


def test_the_flags_that_dockers_default_lacks_are_named() -> None:
    assert sandbox_flags(DOCKER) == [
        "--cap-add SYS_ADMIN",
        "--security-opt seccomp=unconfined",
        "--security-opt apparmor=unconfined",
        "--security-opt systempaths=unconfined",
    ]
    (found,) = check_container(DOCKER)
    assert found.found == (
        "Docker: no CAP_SYS_ADMIN, a seccomp filter, AppArmor's docker-default, a masked /proc"
    )
    assert sandbox_flags(replace(DOCKER, capabilities=ALL, apparmor="")) == [
        "--security-opt systempaths=unconfined"
    ]
    assert sandbox_flags(replace(DOCKER, uid=1000, apparmor="", masked=())) == [
        "--security-opt seccomp=unconfined"
    ]
    assert sandbox_flags(HOST) == []
    assert list(check_container(HOST)) == []


def sandbox(level: str | None, *refused: str, serves_gpus: bool = True) -> Outcome:
    answer = {"level": level, "refused": list(refused), "serves_gpus": serves_gpus}
    return Outcome(answers=(answer,))


def test_the_strongest_sandbox_is_ok_and_a_weaker_one_a_warning_with_the_flags() -> None:
    (found,) = check_sandbox(sandbox("namespaces"), HOST, has_gpus=True, sysctls={})
    assert found == Finding(name="sandbox", found="namespaces")
    weak = sandbox("landlock", "namespaces: unshare: Operation not permitted", serves_gpus=False)
    (found,) = check_sandbox(weak, DOCKER, has_gpus=False, sysctls={})
    assert found.severity is WARNING
    assert found.found == "landlock (namespaces: unshare: Operation not permitted)"
    assert found.fix.startswith("docker run --cap-add SYS_ADMIN --security-opt seccomp")


def test_judges_on_gpus_cannot_start_in_a_weaker_sandbox() -> None:
    weak = sandbox("namespaces-noproc", "namespaces: mount proc", serves_gpus=False)
    (found,) = check_sandbox(weak, DOCKER, has_gpus=True, sysctls={})
    assert found.severity is ERROR
    assert "systempaths=unconfined" in found.fix


def test_no_sandbox_is_an_error_with_the_sysctl_that_forbids_it() -> None:
    user = replace(HOST, uid=1000, capabilities=0)
    sysctls = {"kernel.apparmor_restrict_unprivileged_userns": "1"}
    outcome = sandbox(None, "namespaces: unshare: Operation not permitted")
    (found,) = check_sandbox(outcome, user, has_gpus=False, sysctls=sysctls)
    assert found.severity is ERROR
    assert found.found == "none: namespaces: unshare: Operation not permitted"
    assert "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0" in found.fix
    assert 'judge.isolation = "none"' in found.fix


def test_a_container_is_read_from_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    own = tmp_path / "proc/self"
    (own / "attr").mkdir(parents=True)
    (own / "status").write_text("Name:\tx\nCapEff:\t00000000a80425fb\nSeccomp:\t2\n")
    (own / "attr/current").write_text("docker-default (enforce)\n")
    mounts = ("/", "/proc", "/proc/kcore", "/proc/sys/fs/binfmt_misc", "/proc/sys")
    lines = [f"1 0 0:1 / {at} rw - tmpfs tmpfs rw" for at in mounts]
    (own / "mountinfo").write_text("\n".join(lines))
    (tmp_path / ".dockerenv").touch()
    assert read_container(root=tmp_path) == replace(DOCKER, uid=os.geteuid())
    assert read_container(root=tmp_path / "absent").kind == ""
    assert read_container().capabilities >= 0


# Limits


def test_a_machine_with_plenty_of_everything_has_no_problem() -> None:
    found = by_name(check_limits(PLENTY))
    assert {each.severity for each in found.values()} == {OK}
    assert all(not each.fix for each in found.values())


@pytest.mark.parametrize(
    ("changes", "name", "severity", "fix"),
    [
        ({"num_files": 40}, "open files", ERROR, "ulimit -n 65536"),
        ({"num_files": 512}, "open files", WARNING, "ulimit -n 65536"),
        ({"num_files": 512, "is_container": True}, "open files", WARNING, "--ulimit nofile=65536"),
        ({"num_tasks": 60}, "processes", ERROR, "ulimit -u"),
        ({"num_tasks": 60, "is_container": True}, "processes", ERROR, "--ulimit nproc=-1"),
        ({"group_tasks": 512}, "processes of the container", WARNING, "--pids-limit=-1"),
        ({"address_bytes": 4 << 30}, "address space", ERROR, "ulimit -v unlimited"),
        ({"address_bytes": 8 << 30}, "address space", WARNING, "ulimit -v unlimited"),
        ({"address_bytes": 512 << 30, "num_gpus": 1}, "address space", ERROR, "ulimit -v"),
        ({"address_bytes": 512 << 30}, "address space", OK, ""),
        ({"locked_bytes": 8 << 20, "num_gpus": 2}, "locked memory", OK, ""),
        (
            {"locked_bytes": 64 << 10, "num_gpus": 2, "is_container": True},
            "locked memory", WARNING, "--ulimit memlock=-1",
        ),
        (
            {"locked_bytes": 8 << 20, "has_infiniband": True},
            "locked memory", WARNING, "ulimit -l unlimited",
        ),
        (
            {"shm_free_bytes": 64 << 20, "num_gpus": 2, "is_container": True},
            "/dev/shm", WARNING, "docker run --shm-size=16g",
        ),
        ({"shm_bytes": 64 << 20, "shm_free_bytes": 64 << 20}, "/dev/shm", OK, ""),
        ({"shm_free_bytes": 1 << 20}, "/dev/shm", WARNING, "remove old files"),
        ({"shm_bytes": 1 << 20, "shm_free_bytes": 1 << 20}, "/dev/shm", WARNING, "mount"),
        ({"shm_bytes": None}, "/dev/shm", WARNING, "mount"),
        ({"shm_bytes": None, "num_gpus": 1}, "/dev/shm", ERROR, "mount"),
        ({"cpu_quota": 2.5, "is_container": True}, "cores", WARNING, "--cpuset-cpus=0-1"),
        ({"cpu_quota": 8.0}, "cores", OK, ""),
    ],
)  # fmt: skip
def test_a_limit_has_its_severity_and_fix(
    changes: dict[str, Any], name: str, severity: Severity, fix: str
) -> None:
    found = by_name(check_limits(replace(PLENTY, **changes)))
    assert found[name].severity is severity
    assert fix in found[name].fix
    assert bool(found[name].fix) == bool(fix)
    assert all(each.severity is OK for each in found.values() if each.name != name)


def test_the_limits_of_this_process_are_read() -> None:
    facts = read_limits(cores=2, num_gpus=0, is_container=False)
    assert facts.num_files is None or facts.num_files > 0
    assert facts.shm_bytes is None or facts.shm_bytes > 0


# Storage, clock


def test_too_little_memory_or_disk_is_an_error() -> None:
    room = by_name(
        check_room(memory_bytes=2 << 30, free_disk_bytes=1 << 30, store_dir=Path("runs"))
    )
    assert [each.severity for each in room.values()] == [ERROR, ERROR]
    room = by_name(
        check_room(memory_bytes=8 << 30, free_disk_bytes=8 << 30, store_dir=Path("runs"))
    )
    assert [each.severity for each in room.values()] == [OK, OK]


NOW = datetime(2026, 11, 23, tzinfo=UTC).timestamp()
WRONG = "the clock is wrong:"
JUMPED = (
    "the clock jumped: -3590.0 s passed by the wall clock and 10.0 s by the monotonic clock"
)  # fmt: skip
STEADY = ClockFacts(now=NOW, newest=None, wall_s=10.0, monotonic_s=10.0)


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (STEADY, "2026-11-23 00:00:00 UTC"),
        (replace(STEADY, newest=NOW + 60), "2026-11-23 00:00:00 UTC"),
        (
            replace(STEADY, newest=NOW + 7200, newest_name="a-1/b"),
            f"{WRONG} 2026-11-23 00:00:00 UTC, but a-1/b was written at 2026-11-23 02:00:00 UTC",
        ),
        (
            replace(STEADY, now=0.0),
            f"{WRONG} 1970-01-01 00:00:00 UTC is before this release of forge",
        ),
        (
            replace(STEADY, wall_s=-3590.0),
            JUMPED,
        ),
        (replace(STEADY, wall_s=10.4), "2026-11-23 00:00:00 UTC"),
    ],
)
def test_a_wrong_clock_is_a_warning(facts: ClockFacts, found: str) -> None:
    (finding,) = check_clock(facts)
    assert finding.found == found
    assert finding.severity is (WARNING if "the clock" in found else OK)


def test_the_newest_file_of_the_runs_is_read(tmp_path: Path) -> None:
    for run, age_s in (("old-1", 5000), ("new-1", 50)):
        (tmp_path / run).mkdir()
        file = tmp_path / run / "run.db"
        file.touch()
        os.utime(file, (NOW - age_s, NOW - age_s))
    facts = Stopwatch().read(tmp_path)
    assert (facts.newest_name, facts.newest) == ("new-1/run.db", NOW - 50)
    assert abs(facts.wall_s - facts.monotonic_s) < 1.0
    assert Stopwatch().read(tmp_path / "absent").newest is None
    assert datetime.fromtimestamp(clock.RELEASED, tz=UTC) < datetime.now(tz=UTC)


# The whole


def test_warnings_do_not_stop_a_run_and_errors_do() -> None:
    fine, warned = Finding(name="a", found="b"), warning("c", "d", fix="e")
    assert can_run([fine, warned])
    assert summarize([fine, warned]) == "0 errors, 1 warning: a run can start on this machine"
    broken = [fine, warned, error("f", "g", fix="h")]
    assert not can_run(broken)
    assert summarize(broken) == "1 error, 1 warning: a run could not start on this machine"
    assert to_json(broken) == {
        "schema": 1,
        "ok": False,
        "findings": [
            {"name": "a", "found": "b", "severity": "ok", "fix": ""},
            {"name": "c", "found": "d", "severity": "warning", "fix": "e"},
            {"name": "f", "found": "g", "severity": "error", "fix": "h"},
        ],
    }
