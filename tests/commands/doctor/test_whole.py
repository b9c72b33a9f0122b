"""`forge doctor` as a command on this machine, for an experiment whose vLLM does not import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forge.process.environment import python_path

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[3]
FAULT = "libcudart.so.13: cannot open shared object file"


@pytest.fixture(scope="module")
def own_tmp() -> Iterator[Path]:
    """A TMPDIR with a short path."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def doctor(
    own_tmp: Path, tmp_path_factory: pytest.TempPathFactory
) -> subprocess.CompletedProcess[str]:
    site = tmp_path_factory.mktemp("site")
    (site / "vllm").mkdir()
    (site / "vllm" / "__init__.py").write_text(f"raise ImportError({FAULT!r})\n")
    env = f'env = {{ PYTHONPATH = "{site}{os.pathsep}{python_path()}" }}'
    text = (ROOT / "experiments" / "quickstart.toml").read_text(encoding="utf-8")
    assert "\n[serve]\n" in text
    experiment = site / "x.toml"
    experiment.write_text(text.replace("\n[serve]\n", f'\n[serve]\nengine = "vllm"\n{env}\n'))
    return subprocess.run(
        [sys.executable, "-m", "forge", "doctor", str(experiment), "--json"],
        capture_output=True, text=True, timeout=280, check=False, cwd=ROOT,
        env=os.environ | {"TMPDIR": str(own_tmp)},
    )  # fmt: skip


def findings(doctor: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    assert doctor.stdout, doctor.stderr
    return {each["name"]: each for each in json.loads(doctor.stdout)["findings"]}


def test_a_vllm_that_does_not_import_ends_the_command_with_3(
    doctor: subprocess.CompletedProcess[str],
) -> None:
    found = findings(doctor)["engine vllm"]
    assert found["severity"] == "error"
    assert found["found"].endswith(f"ImportError: {FAULT}")
    assert doctor.returncode == 3
    assert json.loads(doctor.stdout)["ok"] is False


def test_all_that_a_run_needs_is_checked(doctor: subprocess.CompletedProcess[str]) -> None:
    found = findings(doctor)
    expected = {
        *("system", "python", "C compiler", "torch", "triton", "transformers", "peft", "datasets"),
        *("trl", "engine llama", "engine vllm", "engine hf", "engine of runs", "sandbox"),
        *("open files", "processes", "address space", "locked memory", "/dev/shm", "cores"),
        *("memory", "file system", "sockets", "clock"),
    }
    assert expected <= set(found)
    assert any(name.startswith(("kernel on GPU", "kernel on the CPU")) for name in found)
    assert found["torch"]["severity"] == found["triton"]["severity"] == "ok"
    assert json.loads(doctor.stdout)["schema"] == 1
    for each in found.values():
        assert set(each) == {"name", "severity", "found", "fix"}
        assert each["severity"] in ("ok", "warning", "error")
        assert each["fix"] or each["severity"] == "ok", each


def test_the_probes_leave_no_directory(
    doctor: subprocess.CompletedProcess[str], own_tmp: Path
) -> None:
    assert findings(doctor)["sockets"]["found"] == str(own_tmp)
    assert list(own_tmp.glob("forge-*")) == []
