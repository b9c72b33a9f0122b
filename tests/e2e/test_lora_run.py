"""A run that trains an adapter: served, published, resumed and queried on its checkpoint."""

import json
import shutil
from pathlib import Path

import pytest

from tests.e2e.commands import forge, opened
from tests.e2e.experiments import FUNCTION, LITTLE, TINY

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(200)]

EXPERIMENT = f"""\
name = "lora"
{TINY}[model.lora]
r = 4
{LITTLE}[[stage]]
kind = "eval"
num_problems = 1
[[stage]]
kind = "sft"
steps = 2
learning_rate = 1e-2
batch_size = 2
[[stage]]
kind = "eval"
num_problems = 1
"""
ONE_MORE = '\n[[stage]]\nkind = "eval"\nnum_problems = 1\n'

GIVEN = f"""\
name = "given"
[prompt]
preset = "tiny"
[model]
path = "runs/lora-1/weights/init"
adapter = "runs/lora-1/weights/sft-000002"
{LITTLE}[[stage]]
kind = "eval"
num_problems = 1
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    (folder / "lora.toml").write_text(EXPERIMENT)
    forge("run", "lora.toml", cwd=folder)
    return folder / "runs" / "lora-1"


def test_an_adapter_is_trained_and_served(ran: Path) -> None:
    assert sorted(path.name for path in (ran / "weights").iterdir()) == ["init", "sft-000002"]
    assert not (ran / "weights" / "sft-000002" / "model.safetensors").exists()
    with opened(ran) as db:
        evaluated = db.execute("SELECT stage, policy_version FROM evaluations").fetchall()
        (gap,) = db.execute("SELECT probe_gap FROM policies").fetchone()
    assert evaluated == [("eval-0", 0), ("eval-2", 1)]
    assert 0 < gap < 1e-3, "the engine's adapter is the trainer's"


def test_an_adapter_is_served_on_resume_and_asked(ran: Path, tmp_path: Path) -> None:
    root = tmp_path / "runs" / "lora-1"
    shutil.copytree(ran, root, symlinks=True)
    resolved = root / "experiment.toml"
    resolved.write_text(resolved.read_text() + ONE_MORE)  # as if stopped before it
    forge("resume", "lora-1", cwd=tmp_path)
    with opened(root) as db:
        evaluated = db.execute("SELECT stage, policy_version FROM evaluations").fetchall()
    assert evaluated == [("eval-0", 0), ("eval-2", 1), ("eval-3", 1)]

    (tmp_path / "f.py").write_text(FUNCTION)
    solved = forge("solve", "f.py", "--model=lora-1", "--budget=1", "--json", cwd=tmp_path)
    log = Path(json.loads(solved.stdout)["path"]) / "logs" / "latest" / "serve-0.log"
    assert f"from {root}/weights/sft-000002" in log.read_text()


def test_an_adapter_of_another_run_is_served_from_the_start(ran: Path) -> None:
    folder = ran.parents[1]
    (folder / "given.toml").write_text(GIVEN)
    forge("run", "given.toml", cwd=folder)
    served = (folder / "runs" / "given-1" / "logs" / "latest" / "serve-0.log").read_text()
    begun = f"version 0 from {ran}/weights/sft-000002"
    assert begun in served, "before anything is published"
