"""The allow-list root: the only files that a reference or a candidate can see.

The zygote builds it once in its own mount namespace and pivots into it with torch and triton
imported already; what they import later must be in it. It holds system libraries, the interpreter's
standard library, torch, triton, numpy and packaging with what their distributions need, four
devices, and empty directories; no program, no home, no forge, no run directory, no socket.

Distributions of `judge.site_packages` are for children that run references alone. They lie in a
folder of their own, `PACKAGES`, which every other child unmounts before it runs anything; without
a root, Landlock lets only these children read them. These children also find `config.json` of the
models that a reference names in their home directory, in the layout of a Hugging Face cache.

A child on a GPU sees device nodes, driver libraries and a compiler, too. Triton compiles a launcher
in C for each signature, so the programs of /usr/bin are shown on GPU machines; they run in the same
sandbox as the candidate and can do no more than it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from forge.evalpool.judge.sandbox import landlock, linux
from forge.evalpool.site_packages import importable_paths, with_needs
from forge.process.devices import AMD_SETTINGS

# --- files for a card


NVIDIA_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
AMD_NODES = ("kfd",)
COMPILER = ("/bin", "/usr/bin", "/usr/libexec", "/usr/include")
DRIVER_LIBRARIES = ("libcuda.so.1", "libamdhip64.so")
AMD_FILES = ("/sys", "/opt/rocm")
"""ROCm finds its cards in /sys/class/kfd."""
PASSED_ON = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "LD_LIBRARY_PATH"),
    *(*AMD_SETTINGS, "PYTORCH_ROCM_ARCH"),
)
NO_CARDS = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
"""Environment of a zygote whose children have no card."""

NUM_QUEUES = "2"
"""Hardware queues of a context, CUDA's default being 8. A context's cost: on an H200, 16 processes
at once got 5.0 a second with 8, 6.7 with 4, 10.1 with 2, 13.6 with 1, where a candidate's streams
would no longer run beside each other."""


GpuFiles: TypeAlias = "tuple[list[str], list[str]]"
"""Names below /dev, and directories that are shown read-only, for one card."""


def find_gpu_files(*, minor: int | None, dev: Path = Path("/dev")) -> GpuFiles:
    """Nodes and folders of the card with this minor number; of every card if it is unknown."""
    if (dev / "kfd").exists():
        devices = [*AMD_NODES, *(f"dri/{one.name}" for one in sorted(dev.glob("dri/renderD*")))]
        shown = [path for path in AMD_FILES if os.path.exists(path)]
    else:
        cards = "nvidia[0-9]*" if minor is None else f"nvidia{minor}"
        names = [*(one.name for one in sorted(dev.glob(cards))), *NVIDIA_NODES]
        devices = [name for name in names if (dev / name).exists()]
        shown = []
    # Folders with the driver's library that are no system library's: of ldconfig, and the user's.
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False)
    paths = [line.split()[-1] for line in listed.stdout.splitlines() if "=>" in line]
    folders = [os.path.dirname(path) for path in paths if path.endswith(DRIVER_LIBRARIES)]
    folders += os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    for folder in dict.fromkeys(filter(None, folders)):
        has_driver = any(os.path.exists(f"{folder}/{name}") for name in DRIVER_LIBRARIES)
        shown += [folder] if has_driver and not folder.startswith(("/lib", "/usr/lib")) else []
    shown += sorted({sysconfig.get_paths()[name] for name in ("include", "platinclude")})
    shown += [path for path in COMPILER if not os.path.islink(path)]
    return devices, [path for path in shown if os.path.isdir(path)]


def child_environment() -> dict[str, str]:
    """Environment of a child on a GPU beyond `enter.CHILD_ENVIRONMENT`, less the interpreter's."""
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ} | {
        "PATH": "/usr/bin:/bin", "CUDA_MODULE_LOADING": "LAZY", "CUDA_CACHE_DISABLE": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": NUM_QUEUES,
        # Of a baseline under torch.compile.
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor", "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }  # fmt: skip


# --- the root


DISTRIBUTIONS = ("torch", "triton", "numpy", "packaging")
"""With packaging, kernels that run on several versions of Triton compare them."""
SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
SYSTEM_FILES = ("/etc/ld.so.cache",)
DEVICES = ("null", "zero", "random", "urandom")
SCRATCH = "/tmp"
"""The one writable place, a tmpfs of each child's own."""
SCRATCH_FOLDERS = ("work", "home", "shm", "triton")
BEHIND = "/behind-scratch"
"""Place of what SCRATCH holds in the root, while a child mounts its own above it."""
PACKAGES = "/reference-packages"
"""Folder of the distributions that references alone may import; absent without any."""
SMALL = "size=1m,mode=755"
"""Options of a tmpfs of mount points alone."""
READ_ONLY = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
REFERENCE_ROLES = frozenset({"oracle", "examiner", "baseline", "harvester"})
"""Roles of children that run references."""
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
    packages: tuple[str, ...] = ()
    """Entries of site-packages for references alone."""


def plan_root(gpu: GpuFiles | None = None, *, site_packages: Iterable[str] = ()) -> RootPlan:
    """Looks at this machine and this interpreter. Reads distribution records: about 0.1 s.
    References may import `site_packages` and what these require."""
    links = [(path, os.readlink(path)) for path in SYSTEM_LIBRARIES if os.path.islink(path)]
    linked = {path for path, _ in links}
    shown = [path for path in SYSTEM_LIBRARIES if path not in linked and os.path.isdir(path)]
    devices, of_card = gpu or ([], [])
    shown += of_card
    stdlib = os.path.realpath(sysconfig.get_paths()["stdlib"])
    # libpython, where the interpreter is built with it and it is no system library.
    folder, name = (sysconfig.get_config_var(one) or "" for one in ("LIBDIR", "INSTSONAME"))
    python = os.path.realpath(f"{folder}/{name}")
    is_shared = name.startswith("libpython") and ".so" in name
    is_shared = is_shared and not python.startswith(("/usr/lib", "/lib"))
    files = (*SYSTEM_FILES, *((python,) if is_shared else ()))
    shown += [stdlib, *(path for path in files if os.path.exists(path))]
    hidden = [path for name in HIDDEN if os.path.isdir(path := f"{stdlib}/{name}")]
    shown += importable_paths(with_needs(DISTRIBUTIONS))
    packages = importable_paths(with_needs(site_packages))
    return RootPlan(
        shown=tuple(dict.fromkeys(shown)),
        links=tuple(links),
        hidden=tuple(hidden),
        site_packages=sysconfig.get_paths()["purelib"],
        devices=tuple(devices),
        packages=tuple(path for path in packages if path not in shown),
    )


def build_root(plan: RootPlan, *, at: str) -> None:
    """Makes the root on a tmpfs at `at` (an empty directory), in a mount namespace of our own."""
    linux.mount(None, "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", at, kind="tmpfs", flags=linux.MS_NOSUID, data=SMALL)
    for name in ("dev", "proc", "tmp", "etc"):
        os.mkdir(f"{at}/{name}", 0o755)
    inside = shown_in_scratch(plan)
    folders = [path for path in inside if path not in plan.shown]
    for path in folders:
        os.makedirs(at + path, 0o755)
        linux.mount(at + path, at + path, flags=linux.MS_BIND)
    for path in plan.shown:
        _show(path, target=at + path)
    for path in folders:
        linux.mount(None, at + path, flags=READ_ONLY)
    if inside:
        os.mkdir(at + BEHIND, 0o755)
    if plan.packages:  # a mount of its own, so that one unmount takes all of them away
        packages = at + PACKAGES
        os.mkdir(packages, 0o755)
        linux.mount("tmpfs", packages, kind="tmpfs", flags=linux.MS_NOSUID, data=SMALL)
        for path in plan.packages:
            _show(path, target=f"{packages}/{os.path.basename(path)}")
        linux.mount(None, packages, flags=READ_ONLY)
    for path in plan.hidden:
        linux.mount("tmpfs", at + path, kind="tmpfs", flags=linux.MS_RDONLY, data=SMALL)
    for path, target in plan.links:
        os.symlink(target, at + path)
    for name in (*DEVICES, *plan.devices):
        os.makedirs(os.path.dirname(f"{at}/dev/{name}"), 0o755, exist_ok=True)
        Path(f"{at}/dev/{name}").touch()
        linux.mount(f"/dev/{name}", f"{at}/dev/{name}", flags=linux.MS_BIND)
    os.symlink(f"{SCRATCH}/shm", f"{at}/dev/shm")


def shown_in_scratch(plan: RootPlan) -> list[str]:
    """Paths in SCRATCH that are or hold what is shown: an installation may lie there."""
    found: set[str] = set()
    for path in plan.shown:
        if path.startswith(f"{SCRATCH}/"):
            names = path.split("/")[2:]
            depth = 2 if names[0] in SCRATCH_FOLDERS else 1
            found.add("/".join([SCRATCH, *names[:depth]]))
    return sorted(found)


def mount_scratch(plan: RootPlan, *, flags: int, data: str) -> None:
    """Mounts a child's own scratch, and in it again, read-only, what is shown there."""
    inside = shown_in_scratch(plan)
    if inside:
        linux.mount(SCRATCH, BEHIND, flags=linux.MS_BIND | linux.MS_REC)
    linux.mount("tmpfs", SCRATCH, kind="tmpfs", flags=flags, data=data)
    for path in inside:
        _bind(BEHIND + path.removeprefix(SCRATCH), target=path)
    if inside:
        linux.unmount(BEHIND)


def follow_packages(plan: RootPlan) -> None:
    """Lets packages that are imported already find their other modules below `PACKAGES`. Called in
    the zygote: torch has imported parts of what references may import."""
    moved = {path: f"{PACKAGES}/{os.path.basename(path)}" for path in plan.packages}
    for module in list(sys.modules.values()):
        paths: Any = getattr(module, "__path__", None)
        if isinstance(paths, list):
            paths += [
                new + path.removeprefix(old)
                for path in paths
                for old, new in moved.items()
                if f"{path}/".startswith(f"{old}/")
            ]


def find_hidden(mounts: Iterable[str], *, role: str) -> set[str]:
    """Mount points of the root that a child of this role does not have."""
    if role in REFERENCE_ROLES:
        return set()
    return {path for path in mounts if f"{path}/".startswith(f"{PACKAGES}/")}


def landlock_rules(plan: RootPlan, *, scratch: str, shows_packages: bool) -> list[tuple[str, int]]:
    """The same allow-list where no root can be built, for the process that asks. Folders that hold
    a hidden one can be listed with it. Children that run references read `plan.packages` too."""
    packages = plan.packages if shows_packages else ()
    listed = {
        os.path.dirname(path) for path in (*plan.hidden, f"{plan.site_packages}/x", *packages)
    }
    rules = [(path, landlock.READ_DIR) for path in sorted(listed)]
    for path in (*plan.shown, *packages):
        inside = [f"{path}/{name}" for name in os.listdir(path)] if path in listed else [path]
        rules += [(one, landlock.READ) for one in inside if one not in plan.hidden]
    rules += [(f"/dev/{name}", landlock.DEVICE) for name in DEVICES]
    return [*rules, (scratch, landlock.SCRATCH)]


def _show(path: str, *, target: str) -> None:
    _bind(path, target=target)
    kept = linux.MS_NOEXEC if os.statvfs(target).f_flag & os.ST_NOEXEC else 0
    linux.mount(None, target, flags=READ_ONLY | kept)


def _bind(path: str, *, target: str) -> None:
    if os.path.isdir(path):
        os.makedirs(target, 0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
        Path(target).touch()
    linux.mount(path, target, flags=linux.MS_BIND | linux.MS_REC)


def reference_sys_path(plan: RootPlan, *, has_root: bool) -> list[str]:
    """Further folders of sys.path in a child that runs references; without a root that was built,
    packages are at their own paths."""
    folders = [PACKAGES] if has_root else [os.path.dirname(path) for path in plan.packages]
    known = sandbox_sys_path(plan)
    return [path for path in dict.fromkeys(folders) if plan.packages and path not in known]


def sandbox_sys_path(plan: RootPlan) -> list[str]:
    """sys.path in the sandbox: the standard library and the shown part of site-packages."""
    stdlib = os.path.realpath(sysconfig.get_paths()["stdlib"])
    return [stdlib, f"{stdlib}/lib-dynload", plan.site_packages]


# --- configs of models


MAX_CONFIG_BYTES = 256 << 10
MAX_MODELS = 16
"""Maximum number of models of one source."""
CACHE = ".cache/huggingface/hub"
"""Default place of the cache, below a home directory."""
_NAME = re.compile(r"""["']([\w-][\w.-]*(?:/[\w-][\w.-]*)?)["']""")
"""A string that can be the name of a model: `gpt2`, `facebook/opt-1.3b`."""


def home_files(source: str) -> dict[str, str]:
    """Texts of files by path below a home directory: the configs of all models that the source
    names in a string. Empty for a source that does not mention transformers."""
    if "transformers" not in source:
        return {}
    files: dict[str, str] = {}
    names = list(dict.fromkeys(_NAME.findall(source)))
    for folder in [f"models--{name.replace('/', '--')}" for name in names]:
        model = cache_dir() / folder
        with suppress(OSError, RuntimeError, UnicodeDecodeError):  # the cache may not have it
            revision = (model / "refs" / "main").read_text(encoding="utf-8").strip()
            path = model / "snapshots" / revision / "config.json"
            if re.fullmatch(r"\w+", revision) and path.stat().st_size <= MAX_CONFIG_BYTES:
                config = path.read_text(encoding="utf-8")
                files[f"{CACHE}/{folder}/refs/main"] = revision
                files[f"{CACHE}/{folder}/snapshots/{revision}/config.json"] = config
        if len(files) == 2 * MAX_MODELS:
            break
    return files


def cache_dir() -> Path:
    """The cache of this user, as huggingface_hub finds it."""
    places = (
        *(("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    )
    found = (Path(os.environ[name], below) for name, below in places if os.environ.get(name))
    return next(found, Path("~", CACHE)).expanduser()
