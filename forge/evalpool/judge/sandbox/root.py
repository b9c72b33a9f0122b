"""The allow-list root: the only files that a reference or a candidate can see.

The zygote builds it once in its own mount namespace and pivots into it with torch and triton
imported already; what they import later must be in it. It holds system libraries, the interpreter's
standard library, torch, triton and numpy with what their distributions need, four devices, and
empty directories; no program, no home, no forge, no run directory, no socket.
"""

from __future__ import annotations

import os
import re
import sysconfig
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from forge.evalpool.judge.sandbox import landlock, linux

if TYPE_CHECKING:
    from forge.evalpool.judge.sandbox.gpu_files import GpuFiles

DISTRIBUTIONS = ("torch", "triton", "numpy")
SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
SYSTEM_FILES = ("/etc/ld.so.cache",)
DEVICES = ("null", "zero", "random", "urandom")
SCRATCH = "/tmp"
"""The one writable place, a tmpfs of each child's own."""
HIDDEN = ("site-packages", "dist-packages")
"""Below the standard library: replaced by nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootPlan:
    """Content of a sandbox's root. Paths are those outside, so that imports need no new
    sys.path."""

    shown: tuple[str, ...]
    """Files and directories bound read-only."""
    links: tuple[tuple[str, str], ...]
    """Symbolic links to make again: (path, target)."""
    hidden: tuple[str, ...]
    """Directories below `shown` that are covered by an empty one."""
    site_packages: str
    devices: tuple[str, ...] = ()
    """Nodes below /dev beyond the four that every child has."""


def plan_root(gpu: GpuFiles | None = None) -> RootPlan:
    """Looks at this machine and this interpreter. Reads distribution records: about 0.1 s."""
    shown, links = _system_libraries()
    if gpu is not None:
        shown += gpu.shown
    stdlib = os.path.realpath(sysconfig.get_paths()["stdlib"])
    shown += [stdlib, *_shared_python(), *(path for path in SYSTEM_FILES if os.path.exists(path))]
    hidden = [path for name in HIDDEN if os.path.isdir(path := f"{stdlib}/{name}")]
    site_packages = sysconfig.get_paths()["purelib"]
    shown += _distribution_paths(site_packages)
    return RootPlan(
        shown=tuple(dict.fromkeys(shown)),
        links=tuple(links),
        hidden=tuple(hidden),
        site_packages=site_packages,
        devices=gpu.devices if gpu is not None else (),
    )


def build_root(plan: RootPlan, *, at: str) -> None:
    """Makes the root on a tmpfs at `at` (an empty directory), in a mount namespace of our own."""
    linux.mount(None, "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", at, kind="tmpfs", flags=linux.MS_NOSUID, data="size=1m,mode=755")
    for name in ("dev", "proc", "tmp", "etc"):
        os.mkdir(f"{at}/{name}", 0o755)
    for path in plan.shown:
        _show(path, at=at)
    for path in plan.hidden:
        linux.mount(
            "tmpfs", at + path, kind="tmpfs", flags=linux.MS_RDONLY, data="size=4k,mode=755"
        )
    for path, target in plan.links:
        os.symlink(target, at + path)
    for name in (*DEVICES, *plan.devices):
        os.makedirs(os.path.dirname(f"{at}/dev/{name}"), 0o755, exist_ok=True)
        Path(f"{at}/dev/{name}").touch()
        linux.mount(f"/dev/{name}", f"{at}/dev/{name}", flags=linux.MS_BIND)
    os.symlink(f"{SCRATCH}/shm", f"{at}/dev/shm")


def seal_root() -> None:
    """After the pivot: the tmpfs that the root itself is becomes read-only."""
    flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
    linux.mount(None, "/", flags=flags)


def landlock_rules(plan: RootPlan, *, scratch: str) -> list[tuple[str, int]]:
    """The same allow-list where no root can be built, for the process that asks. Folders that hold
    a hidden one can be listed with it.
    """
    listed = {os.path.dirname(path) for path in (*plan.hidden, f"{plan.site_packages}/x")}
    rules = [(path, landlock.READ_DIR) for path in sorted(listed)]
    for path in plan.shown:
        inside = [f"{path}/{name}" for name in os.listdir(path)] if path in listed else [path]
        rules += [(one, landlock.READ) for one in inside if one not in plan.hidden]
    rules += [(f"/dev/{name}", landlock.DEVICE) for name in DEVICES]
    return [*rules, (scratch, landlock.SCRATCH)]


def _show(path: str, *, at: str) -> None:
    target = at + path
    if os.path.isdir(path):
        os.makedirs(target, 0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
        Path(target).touch()
    linux.mount(path, target, flags=linux.MS_BIND | linux.MS_REC)
    kept = linux.MS_NOEXEC if os.statvfs(target).f_flag & os.ST_NOEXEC else 0
    flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
    linux.mount(None, target, flags=flags | kept)


def _system_libraries() -> tuple[list[str], list[tuple[str, str]]]:
    shown: list[str] = []
    links: list[tuple[str, str]] = []
    for path in SYSTEM_LIBRARIES:
        if os.path.islink(path):
            links.append((path, os.readlink(path)))
        elif os.path.isdir(path):
            shown.append(path)
    return shown, links


def _shared_python() -> list[str]:
    """libpython, where the interpreter is built with it and it is no system library."""
    folder = sysconfig.get_config_var("LIBDIR") or ""
    name = sysconfig.get_config_var("INSTSONAME") or ""
    path = os.path.realpath(f"{folder}/{name}")
    outside = not path.startswith(("/usr/lib", "/lib"))
    return (
        [path]
        if name.startswith("libpython") and ".so" in name and outside and os.path.exists(path)
        else []
    )


@dataclass(slots=True)
class _Closure:
    """The distributions needed by a set, found through their metadata."""

    names: set[str] = field(default_factory=set)

    def add(self, name: str) -> None:
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in self.names:
            return
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            return
        self.names.add(key)
        for line in requires:
            if "extra ==" not in line and (found := re.match(r"[A-Za-z0-9._-]+", line)):
                self.add(found.group())


def _distribution_paths(site_packages: str) -> list[str]:
    """Top-level entries in site-packages of the allowed distributions and their needs."""
    closure = _Closure()
    for name in DISTRIBUTIONS:
        closure.add(name)
    tops: set[str] = set()
    for name in closure.names:
        for file in metadata.files(name) or ():
            if file.parts[0] not in ("..", "__pycache__", "/"):
                tops.add(file.parts[0])
    paths = [f"{site_packages}/{top}" for top in sorted(tops) if not top.endswith(".pth")]
    return [path for path in paths if os.path.exists(path) and _is_importable(path)]


def _is_importable(path: str) -> bool:
    return path.endswith(".py") or os.path.isdir(path)


def sandbox_sys_path(plan: RootPlan) -> list[str]:
    """sys.path in the sandbox: the standard library and the shown part of site-packages."""
    stdlib = os.path.realpath(sysconfig.get_paths()["stdlib"])
    return [stdlib, f"{stdlib}/lib-dynload", plan.site_packages]
