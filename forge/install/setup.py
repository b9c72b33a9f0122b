"""Runs setup: nothing if the stamp is valid, else checks the machine, runs the steps, stamps.

Of a machine that lacks something, each missing thing is one line. torch is the first step, and the
installed build is pinned, so that no later step replaces it. Each step may run again: pip skips
what is complete. The builds of torch (`TORCH=`) and of llama.cpp (`LLAMA=`) are for the CPU, or for
GPUs too; the user's CMAKE_ARGS come last and win, so a machine can build for GPUs that it does not
have. The output of pip, and of the compiler below it, is the progress of a step. The stamp
`.venv/setup.json` is written at the end, so that the next setup has nothing to do.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import tomllib
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from forge.errors import MachineError

TORCH_INDEX = "https://download.pytorch.org/whl/"
REACH_S = 2.0
"""Maximum wait for the index of torch's CPU builds, which a mirror may make unreachable."""
ROCM_VERSION = Path("/opt/rocm/.info/version")

COMMON_ARGS = "-DLLAVA_BUILD=OFF"
"""Builds without image input, since the engine reads token ids."""
LINK_ARGS = "-Wl,--exclude-libs,libstdc++.a" if sys.platform == "linux" else ""
"""Hides the copies of libstdc++ that some compilers link into each library. Otherwise they mix, and
the process crashes when it loads a model. No effect with a shared libstdc++."""
TOOL_TIMEOUT_S = 20.0
CUDA_HOME = Path("/usr/local/cuda")
ROCM_HOME = Path("/opt/rocm")
CUDA_ARCHITECTURES = "CMAKE_CUDA_ARCHITECTURES"
AMD_TARGETS = "GPU_TARGETS"
Plan = tuple[list[str], str, str]
"""Faults, arguments of cmake, and the compiler's directory if it is not on PATH."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchChoice:
    """Arguments of `pip install` for torch, and the name of the build in stamp and messages."""

    name: str
    """cpu, cuda, rocm, or the user's own requirement."""
    pip_args: tuple[str, ...]


def detect_accelerator(env: Mapping[str, str]) -> str:
    """cuda if nvidia-smi lists a GPU, rocm if the amdgpu compute device exists, else cpu."""
    if "GPU" in output_of(("nvidia-smi", "-L"), env):
        return "cuda"
    return "rocm" if Path("/dev/kfd").exists() else "cpu"


def choose_torch(name: str, *, tested: str, rocm: str | None, is_cpu_index_up: bool) -> TorchChoice:
    """Chooses a build by name: cpu, cuda, rocm or a pip requirement.

    On a CPU pip gets the tested version: a `+cpu` build, from the extra index or from the user's
    find-links, ranks above PyPI's CUDA build of the same version. Raises MachineError: rocm without
    a version.

    Args:
        name: the build.
        tested: the requirement in constraints.txt.
        rocm: version of ROCm, or None if unknown.
        is_cpu_index_up: True if the index of CPU builds answers.
    """
    if name == "cpu":
        extra = ("--extra-index-url", TORCH_INDEX + "cpu") if is_cpu_index_up else ()
        return TorchChoice(name=name, pip_args=(tested, *extra))
    if name == "cuda":
        return TorchChoice(name=name, pip_args=(tested,))
    if name == "rocm":
        if rocm is None:
            raise MachineError(
                f"an AMD GPU, but no {ROCM_VERSION} to choose wheels by: name them, e.g."
                f" TORCH='torch>=2.9 --index-url {TORCH_INDEX}rocm7.0' (or TORCH=cpu)"
            )
        args = ("torch>=2.9", "--index-url", TORCH_INDEX + "rocm" + rocm)
        return TorchChoice(name=name, pip_args=args)
    return TorchChoice(name=name, pip_args=tuple(shlex.split(name)))


def read_rocm_version(info: Path = ROCM_VERSION) -> str | None:
    """Major and minor version of ROCm: `7.0` for `7.0.2-123`; None if unknown."""
    with suppress(OSError):
        found = re.match(r"(\d+\.\d+)", info.read_text())
        return found.group(1) if found else None
    return None


def is_reachable(url: str, *, patience_s: float = REACH_S) -> bool:
    """True if the URL answers in time. Uses a thread, since a name lookup ignores timeouts."""
    answers: list[bool] = []

    def ask() -> None:
        with suppress(OSError, ValueError):
            urllib.request.urlopen(url, timeout=patience_s).close()
            answers.append(True)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(patience_s)
    return bool(answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaChoice:
    """Name of a build, and the arguments of cmake for it."""

    name: str
    cmake_args: str
    path: str = ""

    @property
    def library(self) -> str:
        """Library that a wheel of this build has beside libllama."""
        return f"libggml-{self.name}.so"


def choose_llama(name: str, env: Mapping[str, str]) -> LlamaChoice:
    """Chooses a build by name. Raises MachineError: one line for each thing that the build needs
    and this machine lacks."""
    given = env.get("CMAKE_ARGS", "")
    if name not in PLANS:
        raise MachineError(f"LLAMA={name}: allowed is {', '.join(PLANS)}")
    faults, args, path = PLANS[name](env, given)
    if faults:
        raise MachineError("\n".join(f"LLAMA={name}: {fault}" for fault in faults))
    return LlamaChoice(
        name=name, cmake_args=" ".join(filter(None, (COMMON_ARGS, args, given))), path=path
    )


def _plan_cuda(env: Mapping[str, str], given: str) -> Plan:
    nvcc, path = _find_tool("nvcc", env, beside=CUDA_HOME / "bin")
    faults: list[str] = []
    if nvcc is None and not env.get("CUDACXX"):
        faults.append("no nvcc on PATH or in /usr/local/cuda; install NVIDIA's CUDA toolkit")
    args = "-DGGML_CUDA=on"
    if CUDA_ARCHITECTURES in given:
        return faults, args, path
    ask = ("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
    caps = re.findall(r"^(\d+)\.(\d+)\s*$", output_of(ask, env), flags=re.MULTILINE)
    targets = sorted({f"{major}{minor}" for major, minor in caps})
    if not targets:
        faults.append(_no_gpus("nvidia-smi lists no GPU", f"-D{CUDA_ARCHITECTURES}=90"))
    return faults, f"{args} -D{CUDA_ARCHITECTURES}={';'.join(targets)}", path


def _plan_hip(env: Mapping[str, str], given: str) -> Plan:
    hipcc, path = _find_tool("hipcc", env, beside=ROCM_HOME / "bin")
    faults = [] if hipcc else ["no hipcc on PATH or in /opt/rocm; install AMD's ROCm with its SDK"]
    args = "-DGGML_HIP=on"
    if AMD_TARGETS in given:
        return faults, args, path
    found = output_of(("rocm_agent_enumerator",), env, beside=ROCM_HOME / "bin")
    targets = sorted(set(re.findall(r"^gfx[0-9a-f]+$", found, flags=re.MULTILINE)) - {"gfx000"})
    if not targets:
        faults.append(_no_gpus("rocm_agent_enumerator lists no GPU", f"-D{AMD_TARGETS}=gfx942"))
    return faults, f"{args} -D{AMD_TARGETS}={';'.join(targets)}", path


def _plan_vulkan(env: Mapping[str, str], _given: str) -> Plan:
    glslc, path = _find_tool("glslc", env, beside=Path(env.get("VULKAN_SDK", ""), "bin"))
    faults = [] if glslc else ["no glslc on PATH; Debian, Ubuntu: apt install glslc libvulkan-dev"]
    return faults, "-DGGML_VULKAN=on", path


PLANS: dict[str, Callable[[Mapping[str, str], str], Plan]] = {
    "cpu": lambda _env, _given: ([], "", ""),
    "cuda": _plan_cuda,
    "hip": _plan_hip,
    "vulkan": _plan_vulkan,
}


def _no_gpus(found: str, example: str) -> str:
    return f"{found} to build for; CMAKE_ARGS='{example}' builds for the GPUs of another machine"


def _find_tool(name: str, env: Mapping[str, str], *, beside: Path | None) -> tuple[str | None, str]:
    """Path of a tool, and the directory to add to PATH if it is found only in `beside`."""
    if found := shutil.which(name, path=env.get("PATH", os.defpath)):
        return found, ""
    found = shutil.which(name, path=str(beside)) if beside else None
    return found, str(beside) if found else ""


def output_of(argv: Sequence[str], env: Mapping[str, str], *, beside: Path | None = None) -> str:
    """Output of a vendor's tool; empty if it is missing or fails."""
    tool, _ = _find_tool(argv[0], env, beside=beside)
    if tool is None:
        return ""
    with suppress(OSError, subprocess.TimeoutExpired):
        ran = subprocess.run(
            [tool, *argv[1:]], capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False
        )
        return ran.stdout if ran.returncode == 0 else ""
    return ""


EXTRAS = ("judge", "train", "llama", "dev")
ELSEWHERE = ("forge-kernels", "torch", "llama-cpp-python")
"""Requirements of these extras that are no part of the step: steps of their own, and an extra that
another one includes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Content of pyproject.toml and constraints.txt."""

    tables: dict[str, Any]
    constraints: str

    @property
    def requirements(self) -> list[str]:
        """All requirements except torch and llama.cpp, which have their own steps."""
        wanted = list(self.tables["project"]["dependencies"])
        for extra in EXTRAS:
            wanted += self._extra(extra)
        return [line for line in wanted if _name(line) not in ELSEWHERE]

    @property
    def llama(self) -> str:
        """The requirement of llama-cpp-python, with an exact version."""
        return next(line for line in self._extra("llama") if _name(line) == "llama-cpp-python")

    @property
    def torch(self) -> str:
        """The tested version of torch, as a requirement."""
        return next(line for line in self.constraints.splitlines() if _name(line) == "torch")

    def _extra(self, name: str) -> list[str]:
        return self.tables["project"]["optional-dependencies"][name]


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", found.group()).lower() if found else ""


def load_project(root: Path) -> Project:
    tables = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    constraints = (root / "constraints.txt").read_text(encoding="utf-8")
    return Project(tables=tables, constraints=constraints)


def pin_torch(constraints: str, *, torch: str, triton: str | None) -> str:
    """The constraints with the installed torch, and with its triton if torch brought one."""
    replaced = {"torch", "triton"} if _brings_triton(torch, triton) else {"torch"}
    lines = [line for line in constraints.splitlines() if _name(line) not in replaced]
    lines.append(f"torch=={torch}")
    if triton is not None and "triton" in replaced:
        lines.append(f"triton=={triton}")
    return "\n".join(lines) + "\n"


def drop_triton(requirements: Sequence[str], *, torch: str, triton: str | None) -> list[str]:
    """The requirements without PyPI's triton if torch brought its own, which it would overwrite."""
    is_there = _brings_triton(torch, triton) and triton is None
    return [line for line in requirements if not (is_there and _name(line) == "triton")]


def _brings_triton(torch: str, triton: str | None) -> bool:
    """True if the build of torch determines triton: CUDA and ROCm builds do, CPU builds do not."""
    return "+rocm" in torch or (triton is not None and not torch.endswith("+cpu"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    fingerprint: str
    torch: str
    """Build of torch: cpu, cuda, rocm, or the user's own requirement."""
    root: str
    """Directory of the checkout: the environment's scripts carry absolute paths."""
    llama: str = "cpu"
    """Build of llama.cpp: cpu, cuda, hip or vulkan."""


def fingerprint(project: Project, root: Path, env: Mapping[str, str]) -> str:
    """Hash of everything that determines the packages, except the choices in the stamp."""
    inputs = [
        project.tables["project"],
        project.tables["build-system"],
        project.constraints,
        env.get("CMAKE_ARGS", ""),
        *(
            path.read_text(encoding="utf-8")
            for path in sorted((root / "forge/install").glob("*.py"))
        ),
    ]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()


def read_stamp(venv: Path) -> Stamp | None:
    """The stamp, or None if setup never completed."""
    try:
        return Stamp(**json.loads((venv / "setup.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def is_done(
    venv: Path,
    *,
    root: Path,
    wanted: str,
    torch: str | None,
    python: str | None,
    llama: str | None = None,
) -> bool:
    """True if the last setup made what is wanted now. None accepts its torch, Python or llama."""
    stamp = read_stamp(venv)
    if stamp is None or stamp.fingerprint != wanted or stamp.root != str(root):
        return False
    are_accepted = (
        torch in (None, stamp.torch)
        and python in (None, find_python(venv))
        and llama in (None, stamp.llama)
    )
    return are_accepted and (venv / "bin" / "forge").exists()


def write_stamp(venv: Path, stamp: Stamp) -> None:
    staged = venv / "setup.json.new"
    staged.write_text(json.dumps(asdict(stamp)), encoding="utf-8")
    staged.replace(venv / "setup.json")


def find_version(site: Path, name: str) -> str | None:
    return next((d.version for d in distributions(name=name, path=[str(site)])), None)


def find_python(venv: Path) -> str | None:
    """Name of the interpreter of an environment, `python3.11`, or None."""
    return next((path.name for path in sorted(venv.glob("lib/python3*"))), None)


def find_damaged(site: Path) -> list[Path]:
    """dist-info directories without a RECORD, or whose RECORD lists an absent or truncated file."""
    return [info for info in sorted(site.glob("*.dist-info")) if not _is_complete(info)]


def _is_complete(info: Path) -> bool:
    try:
        rows = list(csv.reader((info / "RECORD").read_text(encoding="utf-8").splitlines()))
        return all(
            (info.parent / row[0]).stat().st_size == int(row[2])
            for row in rows
            if len(row) == 3 and row[2] and not row[0].endswith(".pyc")
        )
    except (OSError, ValueError):
        return False


GIB = 1 << 30
VENV_BYTES = {"cpu": 5 * GIB, "cuda": 14 * GIB, "rocm": 22 * GIB}
"""Room for the environment and pip's cache. CPU: 2.9 GiB measured; the others are estimates."""
REPAIR_BYTES = GIB
"""Room for updating an existing environment."""
BUILD_BYTES = GIB
"""Room in the temporary directory for llama.cpp's sources and objects."""


def setup(root: Path, env: Mapping[str, str]) -> None:
    """Makes or updates the `.venv` of a checkout. Raises MachineError: one line per fault. `root`:
    directory of the checkout. `env`: environment variables. `TORCH` and `LLAMA` override the
    choices. `PYTHON` means that the user asked for this interpreter (make exports its command
    line); without it an existing environment keeps its own."""
    venv = root / ".venv"
    project = load_project(root)
    wanted = fingerprint(project, root, env)
    asked = env.get("TORCH") or None
    asked_llama = env.get("LLAMA") or None
    python = "python{}.{}".format(*sys.version_info[:2]) if env.get("PYTHON") else None
    if is_done(venv, root=root, wanted=wanted, torch=asked, python=python, llama=asked_llama):
        return
    last = read_stamp(venv)
    name = asked or (last.torch if last else detect_accelerator(env))
    llama = choose_llama(asked_llama or (last.llama if last else "cpu"), env)
    is_installed = (venv / "bin" / "forge").exists()
    need_bytes = REPAIR_BYTES if is_installed else VENV_BYTES.get(name, VENV_BYTES["cpu"])
    if faults := find_faults(root, env, need_bytes=need_bytes):
        raise MachineError("\n".join(faults))
    choice = choose_torch(
        name,
        tested=project.torch,
        rocm=read_rocm_version(),
        is_cpu_index_up=name == "cpu" and is_reachable(TORCH_INDEX + "cpu/torch/"),
    )
    installer = Installer(root, project, env)
    is_moved = last is not None and last.root != str(root)
    installer.make_venv(is_unfit=is_moved or python not in (None, find_python(venv)))
    installer.install_torch(choice, is_other=last is not None and last.torch != name)
    installer.install_rest(llama)
    installer.compile_bytecode()
    stamp = Stamp(fingerprint=wanted, torch=name, root=str(root), llama=llama.name)
    write_stamp(venv, stamp)
    sys.stderr.write("setup: done\n")


def find_faults(root: Path, env: Mapping[str, str], *, need_bytes: int) -> list[str]:
    """One line per fault: what is missing, its purpose, and how to install it on Debian, Ubuntu."""
    python = "python{}.{}".format(*sys.version_info[:2])
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    free, temporary = shutil.disk_usage(str(root)).free, tempfile.gettempdir()
    free_there = shutil.disk_usage(temporary).free
    found: dict[str, object] = {
        "no make on PATH; Debian, Ubuntu: apt install make": _has_tool("", ("make",), env),
        f"{python} has no venv module with pip; Debian, Ubuntu: apt install {python}-venv": (
            find_spec("venv") and find_spec("ensurepip")
        ),
        f"no {header}, triton compiles its launchers against it;"
        f" Debian, Ubuntu: apt install {python}-dev": header.is_file(),
        "no C compiler on PATH, triton and llama.cpp need one; Debian, Ubuntu: apt install gcc": (
            _has_tool(env.get("CC", ""), ("cc", "gcc", "clang"), env)
        ),
        "no C++ compiler on PATH, llama.cpp is compiled here; Debian, Ubuntu: apt install g++": (
            _has_tool(env.get("CXX", ""), ("c++", "g++", "clang++"), env)
        ),
        f"disk: {_gib(free)} free beside the checkout, setup needs {_gib(need_bytes)}; free some,"
        " or move the checkout": free >= need_bytes,
        f"disk: {_gib(free_there)} free in {temporary}, compiling llama.cpp needs"
        f" {_gib(BUILD_BYTES)}; TMPDIR=... moves it": free_there >= BUILD_BYTES,
    }
    return [fault for fault, is_there in found.items() if not is_there]


def _has_tool(named: str, usual: Sequence[str], env: Mapping[str, str]) -> bool:
    """True for the tool that `CC` or `CXX` names, with any flags removed, else for a usual one."""
    names, path = shlex.split(named)[:1] or usual, env.get("PATH", os.defpath)
    return any(shutil.which(name, path=path) for name in names)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"


LLAMA_PROBE = "import llama_cpp; llama_cpp.llama_backend_init()"
"""Fails if a cached wheel was compiled for another machine's instruction set."""
PROBE_S = 300.0
"""Maximum time for short commands: making a venv, importing a module."""
GRACE_S = 5.0
"""Time for pip to clean up after an interrupt."""


class Installer:
    """Runs the steps against the `.venv` of one checkout."""

    def __init__(self, root: Path, project: Project, env: Mapping[str, str]) -> None:
        self._root = root
        self._venv = root / ".venv"
        self._python = self._venv / "bin" / "python"
        self._project = project
        self._env = dict(env, PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1")

    def make_venv(self, *, is_unfit: bool) -> None:
        """Repairs a working environment; makes a new one if it is broken or unfit (moved, or made
        with another Python)."""
        if is_unfit or not self._succeeds("import pip"):
            self._create_venv()
        for info in find_damaged(self._site):
            shutil.rmtree(info)  # pip then installs it again
        for leftover in self._site.glob("~*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def install_torch(self, choice: TorchChoice, *, is_other: bool) -> None:
        """Installs torch; `is_other` if another build is installed that could satisfy pip."""
        label = f"2/5 torch ({choice.name})"
        if is_other:
            self._pip(label, "--force-reinstall", "--no-deps", *choice.pip_args)
        self._pip(label, *choice.pip_args)

    def install_rest(self, llama: LlamaChoice) -> None:
        """Installs dependencies, llama.cpp, then forge without dependencies: torch is unchanged."""
        torch = find_version(self._site, "torch")
        if torch is None:
            raise MachineError(
                "TORCH= must be cpu, cuda, rocm or a requirement that installs torch"
            )
        triton = find_version(self._site, "triton")
        pinned = self._venv / "constraints.txt"
        pinned.write_text(
            pin_torch(self._project.constraints, torch=torch, triton=triton), encoding="utf-8"
        )
        wanted = drop_triton(self._project.requirements, torch=torch, triton=triton)
        self._pip("3/5 dependencies", "-c", str(pinned), *wanted)
        self._install_llama(str(pinned), llama)
        self._pip("5/5 forge", "--no-deps", "-e", str(self._root))

    def compile_bytecode(self) -> None:
        """Compiles all packages and forge on all cores; pip does so on one, and not forge, so that
        its first command would. A file that cannot be compiled, such as a package's template, is no
        error: pip ignores it, too."""
        folders = [str(self._site), str(self._root / "forge"), str(self._root / "tui")]
        self._run("5/5 bytecode", "compileall", "-q", "-j", "0", *folders, is_needed=False)

    def _install_llama(self, pinned: str, choice: LlamaChoice) -> None:
        """Installs the chosen build of llama.cpp.

        pip caches wheels by version only, so a build with other arguments neither uses nor fills
        the cache. Since it takes minutes, it is kept if it was made by the same arguments and
        loads.
        """
        is_plain = choice.name == "cpu" and not self._env.get("CMAKE_ARGS")
        ldflags = " ".join(filter(None, (LINK_ARGS, self._env.get("LDFLAGS"))))
        by = f"CMAKE_ARGS={choice.cmake_args}\nLDFLAGS={ldflags}\n"
        args_file = self._venv / "llama-cmake-args"
        made_by = args_file.read_text(encoding="utf-8") if args_file.exists() else None
        is_same = made_by == by
        if is_same and not is_plain and self._has_llama(choice):
            return
        self._env["CMAKE_ARGS"] = choice.cmake_args
        self._env["LDFLAGS"] = ldflags
        if choice.path:
            self._env["PATH"] = f"{choice.path}{os.pathsep}{self._env.get('PATH', os.defpath)}"
        label, wanted = "4/5 llama.cpp", ("-v", "-c", pinned, self._project.llama)
        over, anew = ("--force-reinstall", "--no-deps"), "--no-cache-dir"
        args_file.unlink(missing_ok=True)
        if not is_plain:
            self._pip(label, anew, *over, *wanted)
            self._pip(label, *wanted)  # its dependencies, at the first installation
        else:
            self._pip(label, *(over if made_by and not is_same else ()), *wanted)
            if not self._succeeds(LLAMA_PROBE):
                self._pip(label, anew, *over, *wanted)
        if choice.name != "cpu" and not self._has_llama(choice):
            raise MachineError(
                f"{label}: it was built for {choice.name} but does not load here;"
                f' {self._python} -c "{LLAMA_PROBE}" says why'
            )
        args_file.write_text(by, encoding="utf-8")

    def _has_llama(self, choice: LlamaChoice) -> bool:
        """True if the wanted version and build is installed and loads."""
        wanted = self._project.llama.partition("==")[2]
        library = self._site / "llama_cpp" / "lib" / choice.library
        is_there = find_version(self._site, "llama-cpp-python") == wanted and library.exists()
        return is_there and self._succeeds(LLAMA_PROBE)

    @property
    def _site(self) -> Path:
        return next(self._venv.glob("lib/python3*/site-packages"))

    def _create_venv(self) -> None:
        sys.stderr.write("setup: 1/5 environment\n")
        argv = [sys.executable, "-m", "venv", "--clear", str(self._venv)]
        made = subprocess.run(argv, capture_output=True, text=True, timeout=PROBE_S, check=False)
        if made.returncode != 0:
            raise MachineError(f"{shlex.join(argv)} failed:\n{made.stdout}{made.stderr}".strip())

    def _succeeds(self, code: str) -> bool:
        try:
            argv = [str(self._python), "-c", code]
            ran = subprocess.run(argv, capture_output=True, timeout=PROBE_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return ran.returncode == 0

    def _pip(self, label: str, *args: str) -> None:
        self._run(label, "pip", "install", "--no-compile", *args)

    def _run(self, label: str, module: str, *args: str, is_needed: bool = True) -> None:
        """Runs a module, whose output is the progress of the step."""
        sys.stderr.write(f"setup: {label}\n")
        argv = [str(self._python), "-m", module, *args]
        if run_command(argv, env=self._env) != 0 and is_needed:
            raise MachineError(f"{label}: {module} failed; its last lines above say why")


def run_command(argv: Sequence[str], *, env: Mapping[str, str]) -> int:
    """Runs a command in a new process group, so that its compilers end with it. Returns the exit
    code."""
    process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Sends SIGINT, so that pip removes its temporary directories, then kills the whole group."""
    os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=GRACE_S)
