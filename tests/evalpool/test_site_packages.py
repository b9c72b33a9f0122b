"""Distributions of `judge.site_packages`: references import them, candidates do not, and each
failure says what to list."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forge.adapters.pools import JudgeSettings
from forge.config.schema import JudgeTable
from forge.errors import ConfigError
from forge.evalpool.judge.sandbox import root
from forge.evalpool.site_packages import require_installed, with_advice

ROOT = Path(__file__).parents[2]
PROBLEM = """
import torch
import tinyops

class Model(torch.nn.Module):
    def forward(self, x):
        return tinyops.double(x)

def get_inputs():
    return [torch.randn(4, 64)]

def get_init_inputs():
    return []
"""
KERNEL = """
import torch
import triton
import triton.language as tl

@triton.jit
def double(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2.0 * tl.load(x + at))

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        double[(4,)](x, y, BLOCK=64)
        return y
"""
LEVEL_4 = """
import torch
from transformers import AutoConfig, AutoModelForCausalLM

class Model(torch.nn.Module):
    def __init__(self, model_name, config):
        super().__init__()
        self.model = AutoModelForCausalLM.from_pretrained(model_name, config=config)

    def forward(self, x):
        return self.model(x).logits

model_name = "tiny/gpt"
config = AutoConfig.from_pretrained(model_name)

def get_inputs():
    return [torch.randint(0, config.vocab_size, (2, 16))]

def get_init_inputs():
    return [model_name, config]
"""
CONFIG = {
    "model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 64,
    "n_positions": 32,
}  # fmt: skip


def install(site: Path, name: str, *, code: str, requires: tuple[str, ...] = ()) -> None:
    """Writes a distribution with one package as pip would."""
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").write_text(code)
    record = site / f"{name}-1.5.dist-info"
    record.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.5"]
    lines += [f"Requires-Dist: {each}" for each in requires]
    (record / "METADATA").write_text("\n".join(lines) + "\n")
    (record / "RECORD").write_text(f"{name}/__init__.py,,\n{record.name}/METADATA,,\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages: tinyops, which needs tinyneed."""
    site = tmp_path / "site"
    install(site, "tinyneed", code="FACTOR = 2.0\n")
    install(
        site,
        "tinyops",
        code="from tinyneed import FACTOR\ndef double(x):\n    return FACTOR * x\n",
        requires=("tinyneed>=1", "torch", "absent-one", 'other-one; extra == "all"'),
    )
    monkeypatch.syspath_prepend(str(site))
    (tmp_path / "p.py").write_text(PROBLEM)
    (tmp_path / "answers").mkdir()
    (tmp_path / "answers" / "honest.py").write_text(KERNEL)
    (tmp_path / "answers" / "cheat.py").write_text(f"import tinyops\n{KERNEL}")
    return site


def forge(site: Path, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "forge", *argv, "--device", "cpu"],
        capture_output=True, text=True, timeout=120, check=False, cwd=site.parent,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{site}", "OMP_NUM_THREADS": "1"} | env,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "isolation", ["namespaces", pytest.param("landlock", marks=pytest.mark.long)]
)
def test_a_reference_imports_what_is_listed_with_its_needs_and_a_candidate_does_not(
    site: Path, isolation: str
) -> None:
    listed = ("--site-packages", "tinyops", "--isolation", isolation, "--workers", "1")
    done = forge(site, "judge", "p.py", "answers", "--json", *listed)
    if "no sandbox for candidates" in done.stderr:
        pytest.skip(f"no {isolation} here")
    found = {one["candidate"]: (one["status"], one["reason"]) for one in json.loads(done.stdout)}
    assert found == {"honest.py": ("correct", "ok"), "cheat.py": ("compile_error", "import_error")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "has_config",
    [pytest.param(True, id="cached"), pytest.param(False, id="absent", marks=pytest.mark.long)],
)
def test_an_examined_reference_imports_what_is_listed_and_else_names_the_key(
    site: Path, has_config: bool
) -> None:
    """A model of a hub has random weights if its config is cached."""
    (site.parent / "problems").mkdir()
    (site.parent / "problems" / "1_hub.py").write_text(LEVEL_4)
    (site.parent / "problems" / "2_listed.py").write_text(PROBLEM)
    (site.parent / "problems" / "3_unlisted.py").write_text(PROBLEM.replace("tinyops", "unlisted"))
    install(site, "unlisted", code="def double(x):\n    return 2 * x\n")
    if has_config:
        cache_config(site.parent / "hf" / "hub")
    listed = ("--site-packages", "transformers", "--site-packages", "tinyops")
    argv = ("problems", "check", "problems", "--json", *listed)
    done = forge(site, *argv, HF_HOME=str(site.parent / "hf"), HF_HUB_CACHE="")
    hub, usable, unlisted = json.loads(done.stdout)["problems"]
    if has_config:
        assert (hub["outputs"], hub["flags"]) == (["float32[2, 16, 64]"], {})
    else:
        assert "references reach no model hub" in hub["flags"]["does_not_run"]
    assert usable["flags"] == {}
    assert "No module named 'unlisted'" in unlisted["flags"]["does_not_run"]
    assert 'judge.site_packages lists: add "unlisted"' in unlisted["flags"]["does_not_run"]


def cache_config(hub: Path) -> None:
    model = hub / "models--tiny--gpt"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("abc123")
    (model / "snapshots" / "abc123").mkdir(parents=True)
    (model / "snapshots" / "abc123" / "config.json").write_text(json.dumps(CONFIG))
    (model / "snapshots" / "abc123" / "model.safetensors").write_text("weights")


def test_a_child_gets_the_configs_that_its_reference_names_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    cache_config(tmp_path)
    folder = ".cache/huggingface/hub/models--tiny--gpt"
    assert root.home_files(LEVEL_4) == {
        f"{folder}/refs/main": "abc123",
        f"{folder}/snapshots/abc123/config.json": json.dumps(CONFIG),
    }
    for source in (LEVEL_4.replace("tiny/gpt", "tiny/other"), 'name = "tiny/gpt"', "../tiny/gpt"):
        assert root.home_files(source) == {}
    (tmp_path / "models--tiny--gpt" / "refs" / "main").write_text("../../secret")
    assert root.home_files(LEVEL_4) == {}


def test_a_root_shows_listed_packages_apart_from_those_of_candidates(site: Path) -> None:
    plan = root.plan_root(site_packages=["tinyops"])
    assert {str(site / "tinyops"), str(site / "tinyneed")} <= set(plan.packages)
    assert not set(plan.packages) & set(plan.shown)
    assert not any("tiny" in path for path in plan.shown)
    readable = {
        shows: {path for path, _ in root.landlock_rules(plan, scratch="/x", shows_packages=shows)}
        for shows in (True, False)
    }
    assert str(site / "tinyops") in readable[True] - readable[False]
    assert root.plan_root().packages == ()


def test_a_distribution_that_is_absent_or_editable_is_refused_with_a_line_each(site: Path) -> None:
    require_installed(["tinyops", "Tiny_Need".replace("_", "").lower()])
    install(site, "linked", code="")
    (site / "linked-1.5.dist-info" / "RECORD").write_text("linked.pth,,\n")
    with pytest.raises(ConfigError) as found:
        require_installed(["absent-one", "tinyops", "linked"])
    lines = str(found.value).split("\n")
    assert lines[0] == (
        f"judge.site_packages: absent-one is not installed in {sys.executable}; "
        "allowed: distributions that pip lists"
    )
    assert lines[1].startswith("judge.site_packages: linked has no files in site-packages")
    assert len(lines) == 2


def test_the_option_is_the_key_and_is_refused_for_a_pool_served_elsewhere() -> None:
    assert JudgeSettings(site_packages=("numpy",)).table().site_packages == ["numpy"]
    assert JudgeTable().site_packages == []
    with pytest.raises(ConfigError, match="--site-packages: absent-one is not installed in"):
        JudgeSettings(site_packages=("absent-one",)).table()
    with pytest.raises(ConfigError, match="--url: --site-packages must be set where"):
        JudgeSettings(site_packages=("numpy",), url="http://h:1").table()
    with pytest.raises(ConfigError, match='found "numpy==2"; names of distributions'):
        JudgeSettings(site_packages=("numpy==2",)).table()


@pytest.mark.parametrize(
    ("failure", "advice"),
    [
        ("ModuleNotFoundError: No module named 'tinyops'", 'lists: add "tinyops" (--site'),
        ("ModuleNotFoundError: No module named 'absent'", "install it there and list its"),
        ("ModuleNotFoundError: No module named '_tkinter'", ""),
        ("ModuleNotFoundError: No module named 'tinyops.more'", ""),
        ("PermissionError: [Errno 13] Permission denied: '__init__.py'", "in judge.site_packages"),
        ("PermissionError: [Errno 13] Permission denied: 'data.txt'", ""),
        ("OSError: We couldn't connect to 'https://huggingface.co'", "reach no model hub"),
        ("ValueError: no", ""),
    ],
)
def test_the_advice_on_a_failed_reference_names_what_to_list(
    site: Path, failure: str, advice: str
) -> None:
    text = with_advice(f"the reference of p fails: {failure}")
    assert text.startswith(f"the reference of p fails: {failure}")
    assert advice in text
    assert (text.endswith(failure)) is (not advice)
