"""The Containerfiles, which no test builds: each file, option and command in them exists."""

import json
import re
import shlex
from pathlib import Path

import pytest

from forge.cli import run_command
from forge.commands.doctor.examine import AMD_FLAGS, HostFacts, sandbox_flags
from forge.commands.doctor.probe import CAPABILITIES
from forge.config.recipes import list_recipes
from forge.install.setup import TORCH_INDEX
from forge.serve.engines import TESTED_VLLM

ROOT = Path(__file__).parents[1]
FILES = {path.name.partition(".")[0]: path for path in (ROOT / "containers").iterdir()}
NAMES = ["cuda", "rocm"]
DOCKERS_DEFAULTS = HostFacts(
    container="Docker", uid=0, capabilities=0, seccomp=2, apparmor="docker-default",
    masked=["/proc/acpi"],
)  # fmt: skip


def instructions(name: str) -> list[tuple[str, str]]:
    """Word and rest of each instruction, with its continued lines."""
    text = re.sub(r"\\\n", " ", FILES[name].read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def of_kind(name: str, kind: str) -> list[str]:
    return [rest for word, rest in instructions(name) if word == kind]


def docker_lines(name: str, command: str) -> list[str]:
    text = FILES[name].read_text(encoding="utf-8")
    return re.findall(rf"^#   (docker {command} .*)$", text, flags=re.MULTILINE)


def test_there_is_one_for_each_vendor():
    assert sorted(FILES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_copied_file_exists_and_setup_has_all_that_it_reads(name):
    copied = [path for rest in of_kind(name, "COPY") for path in rest.split()[:-1]]
    assert [path for path in copied if not (ROOT / path).exists()] == []
    linked = [path for path in (ROOT / "forge").iterdir() if path.is_symlink()]
    wanted = {path.resolve().relative_to(ROOT).parts[0] for path in linked}
    assert wanted | {"pyproject.toml", "hatch_build.py", "constraints.txt", "forge"} <= set(copied)


@pytest.mark.parametrize("name", NAMES)
def test_what_an_image_copies_is_sent_to_the_build_and_nothing_large_is(name):
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copied = {path for rest in of_kind(name, "COPY") for path in rest.split()[:-1]}
    assert not copied & set(ignored)
    assert {".git", ".venv", "runs", "**/__pycache__"} <= set(ignored)


@pytest.mark.parametrize("name", NAMES)
def test_the_installed_packages_are_those_that_setup_asks_for(name):
    said = (ROOT / "forge/install/setup.py").read_text().replace("{python}", "python3")
    asked = set(re.findall(r'apt install ([^\s"]+)', said))
    assert len(asked) == 6
    (line,) = [rest for rest in of_kind(name, "RUN") if "apt-get install" in rest]
    assert asked - {"glslc"} <= set(line.split())  # for Vulkan; an image is for CUDA or ROCm


@pytest.mark.parametrize("name", NAMES)
def test_docker_runs_with_all_flags_of_the_sandbox(name):
    (line,) = docker_lines(name, "run")
    flags = sandbox_flags(DOCKERS_DEFAULTS)
    assert len(flags) == 4
    gpus = ["--gpus all"] if name == "cuda" else list(AMD_FLAGS)
    assert [flag for flag in (*flags, *gpus, "--pids-limit=-1") if flag not in line] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_lines_to_build_it_name_it_and_its_arguments(name):
    lines = docker_lines(name, "build")
    assert len(lines) == 2
    arguments = {rest.partition("=")[0] for rest in of_kind(name, "ARG")}
    for line in lines:
        words = shlex.split(line)
        assert ROOT / words[words.index("-f") + 1] == FILES[name]
        assert words[words.index("--build-arg") + 1].partition("=")[0] in arguments


@pytest.mark.parametrize("name", NAMES)
def test_its_command_and_the_named_recipes_exist(name, capsys):
    (entry,), (command,) = of_kind(name, "ENTRYPOINT"), of_kind(name, "CMD")
    assert json.loads(entry) == ["forge"]
    assert run_command([*json.loads(command), "--help"]) == 0
    recipes = {recipe.name for recipe in list_recipes()}
    named = re.findall(r'"init ([\w-]+)"', FILES[name].read_text(encoding="utf-8"))
    assert named
    assert set(named) <= recipes
    assert of_kind(name, "ENV")[-1] == "PATH=/opt/forge/.venv/bin:$PATH"
    assert of_kind(name, "WORKDIR") == ["/opt/forge", "/work"]


def test_versions_and_addresses_are_those_of_setup_and_doctor():
    assert f'VLLM="{TESTED_VLLM}.*"' in FILES["cuda"].read_text(encoding="utf-8")
    assert CAPABILITIES.removeprefix("-e ") in " ".join(of_kind("cuda", "ENV"))
    assert "make setup TORCH=cuda" in " ".join(of_kind("cuda", "RUN"))
    assert f"--index-url {TORCH_INDEX}rocm$ROCM" in " ".join(of_kind("rocm", "RUN"))
