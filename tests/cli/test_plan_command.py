"""`forge plan --assume`, and `--wait` of runs."""

import json
from pathlib import Path

import pytest

from forge import cli
from forge.process.devices import Gpu, GpuUser, Occupancy, Vendor
from forge.process.gpu_locks import claim
from forge.runner.plan import machine as claiming
from forge.runner.plan import machine as machine_module

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "experiments" / "quickstart.toml"
ON_GPUS = ("--set=devices.gpus=auto", "--set=devices.train=auto", "--set=devices.judge=1")
CARD = Gpu(
    vendor=Vendor.NVIDIA, index=0, uuid="GPU-0", name="H200", memory_bytes=1 << 37,
    free_bytes=1 << 37,
)  # fmt: skip


def test_a_plan_for_an_assumed_machine_shows_its_gpus_and_reasons(capsys):
    assert cli.run_command(["plan", str(QUICKSTART), "--assume", "3xH100-80GB", *ON_GPUS]) == 0
    shown = capsys.readouterr().out
    assert "assumed: 3xH100-80GB" in shown
    assert "· devices.train = auto: 2 of 3" in shown
    (trainer,) = [line for line in shown.splitlines() if line.startswith("trainer ")]
    assert "GPU 1-2" in trainer
    argv = ["plan", str(QUICKSTART), "--assume", "3xH100-80GB", *ON_GPUS, "--json"]
    assert cli.run_command(argv) == 0
    plan = json.loads(capsys.readouterr().out)
    devices = {each["name"]: each["device"] for each in plan["processes"]}
    assert (devices["judge-0"], devices["trainer"]) == ("GPU 0", "GPU 1-2")
    assert plan["processes"][-1]["gpu_bytes"] > 0
    assert plan["engine"] == "llama"


def test_files_of_another_machine_need_not_be_on_this_one(tmp_path, capsys):
    (tmp_path / "x.toml").write_text(
        'name = "x"\nmodel.path = "Qwen/Qwen3-8B"\nproblems.source = "dir"\n'
        f'problems.path = "{tmp_path}/nowhere"\nserve.python = "{tmp_path}/python"\n'
        '[devices]\ngpus = "auto"\nserve = "auto"\n[[stage]]\nkind = "eval"\n'
    )
    assert cli.run_command(["plan", str(tmp_path / "x.toml"), "--assume", "1xH100-80GB"]) == 0
    assert "vllm" in capsys.readouterr().out
    assert cli.run_command(["plan", str(tmp_path / "x.toml")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_an_invalid_assumed_machine_is_refused(capsys):
    assert cli.run_command(["plan", str(QUICKSTART), "--assume", "many"]) == 2
    assert capsys.readouterr().err.startswith('forge: --assume: found "many"; ')


@pytest.fixture
def one_card(monkeypatch, tmp_path):
    """Makes commands see a machine with one GPU whose memory another process fills."""
    monkeypatch.setattr(machine_module, "inventory", lambda: (CARD,))
    full = Occupancy(free_bytes=0, users=(GpuUser(pid=77, name="python", memory_bytes=1 << 37),))
    monkeypatch.setattr(machine_module, "occupancies", lambda gpus: {CARD.uuid: full})

    def claim_here(gpus, **keys):
        return claim(gpus, **{**keys, "folder": tmp_path})

    monkeypatch.setattr(claiming, "claim", claim_here)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_on_a_gpu_in_use_is_refused_before_it_has_a_directory(one_card, capsys):
    asked = ["--set=devices.gpus=auto", "--set=devices.judge=1"]
    with claim([CARD], run="first-3", folder=one_card):
        assert cli.run_command(["run", str(QUICKSTART), *asked]) == 3
        assert "is used by run first-3, pid " in capsys.readouterr().err
        assert cli.run_command(["run", str(QUICKSTART), *asked, "--wait", "0.01"]) == 3
        assert capsys.readouterr().err.endswith(" after 0 s\n")
    assert not (one_card / "runs").exists()
