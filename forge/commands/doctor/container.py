"""The container around this process, and the sandbox that judges can build in it.

Docker's defaults forbid what the sandbox is made of: each flag that is missing is named. A judge on
a GPU needs the strongest level, since CUDA does not start without a /proc of its own.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forge.commands.doctor.finding import Finding, error, warning
from forge.evalpool.judge.sandbox.enter import advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from forge.commands.doctor.probe import Outcome

CAP_SYS_ADMIN = 1 << 21
SECCOMP_FILTER = 2
"""Value in /proc/self/status of a process under a system call filter."""
UNMASKED = ("/proc/sys/fs/binfmt_misc",)
"""Mounts below /proc that any machine has."""
MARKS = {".dockerenv": "Docker", "run/.containerenv": "Podman"}
"""Files in the root of a container."""
NO_SANDBOX = 'judge.isolation = "none" uses none'


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFacts:
    """Container, privileges and filters of this process."""

    kind: str
    """Docker, Podman, Kubernetes; empty for none."""
    uid: int
    capabilities: int
    """Effective capabilities, a mask."""
    seccomp: int
    apparmor: str
    """Profile; empty without AppArmor."""
    masked: Sequence[str] = ()
    """Mounts over files of /proc."""


def read_container(*, root: Path = Path("/")) -> ContainerFacts:
    """Read /proc and the marks of container runtimes."""
    status = _read(root / "proc/self/status")
    kind = next((kind for mark, kind in MARKS.items() if (root / mark).exists()), "")
    if not kind and "KUBERNETES_SERVICE_HOST" in os.environ:
        kind = "Kubernetes"
    mounts = [line.split(" ")[4] for line in _read(root / "proc/self/mountinfo").splitlines()]
    return ContainerFacts(
        kind=kind,
        uid=os.geteuid(),
        capabilities=int(_field(status, "CapEff") or "0", 16),
        seccomp=int(_field(status, "Seccomp") or "0"),
        apparmor=_read(root / "proc/self/attr/current").strip("\0\n ").removesuffix(" (enforce)"),
        masked=[at for at in mounts if at.startswith("/proc/") and at not in UNMASKED],
    )


def docker(*flags: str) -> str:
    """The fix that restarts the container with flags."""
    return f"docker run {' '.join(flags)}"


def sandbox_flags(facts: ContainerFacts) -> list[str]:
    """Flags that give a container what the strongest sandbox needs, without those it has."""
    has_admin = bool(facts.capabilities & CAP_SYS_ADMIN)
    flags: list[str] = []
    if facts.uid == 0 and not has_admin:
        flags.append("--cap-add SYS_ADMIN")
    if facts.seccomp == SECCOMP_FILTER and not has_admin:
        flags.append("--security-opt seccomp=unconfined")
    if facts.apparmor not in ("", "unconfined"):
        flags.append("--security-opt apparmor=unconfined")
    if facts.masked:
        flags.append("--security-opt systempaths=unconfined")
    return flags


def check_container(facts: ContainerFacts) -> Iterator[Finding]:
    """The kind of container, and what it forbids."""
    if facts.kind:
        forbids = {
            "CAP_SYS_ADMIN": not facts.capabilities & CAP_SYS_ADMIN,
            "a seccomp filter": facts.seccomp == SECCOMP_FILTER,
            f"AppArmor's {facts.apparmor}": facts.apparmor not in ("", "unconfined"),
            "a masked /proc": bool(facts.masked),
        }
        named = ", ".join(name for name, is_set in forbids.items() if is_set)
        named = named.replace("CAP_SYS_ADMIN", "no CAP_SYS_ADMIN")
        yield Finding(name="container", found=f"{facts.kind}: {named or 'unconfined'}")


def check_sandbox(
    outcome: Outcome, facts: ContainerFacts, *, has_gpus: bool, sysctls: Mapping[str, str]
) -> Iterator[Finding]:
    """The level that judges use, and how to get the strongest."""
    level = outcome.get("level")
    refused: list[str] = outcome.get("refused") or []
    flags = sandbox_flags(facts)
    fix = docker(*flags) if flags and facts.kind else advice(uid=facts.uid, sysctls=sysctls)
    if level is None:
        why = outcome.fault or "; ".join(refused)
        yield error("sandbox", f"none: {why}", fix=f"{fix}; {NO_SANDBOX}")
        return
    found = f"{level} ({'; '.join(refused)})" if refused else f"{level}"
    if has_gpus and not outcome.get("serves_gpus"):
        found = f"{found}; judges on GPUs need namespaces with a /proc of their own"
        yield error("sandbox", found, fix=f"{fix}; {NO_SANDBOX}")
    elif refused:
        yield warning("sandbox", found, fix=fix)
    else:
        yield Finding(name="sandbox", found=found)


def _field(status: str, name: str) -> str:
    found = re.search(rf"^{name}:\s*(\S+)", status, re.MULTILINE)
    return found[1] if found else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
