"""verl, slime and verifiers, unchanged, load and call the adapters by their own code.

verifiers is installed by `make frameworks`. verl and slime need packages for GPUs:
FORGE_VERL_PYTHON and FORGE_SLIME_PYTHON name interpreters that have them, FORGE_SLIME_PATH is a
checkout of slime.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forge.rollout.rewards.formulas import turn_returns
from tests.adapters.interpreters import python_with
from tests.adapters.scripted_server import HOPELESS, WRONG, ScriptedServer, scripted_server
from tests.evalpool.judged import ROOT, SOURCE

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

VERL = """
import asyncio, json, sys
import numpy as np, torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo.reward import load_reward_manager
class Tokenizer:
    def decode(self, ids, skip_special_tokens=True):
        return bytes(int(each) for each in ids).decode()
function = {"path": "pkg://forge.adapters.verl", "name": "compute_score",
            "reward_kwargs": {"url": sys.argv[1]}}
manager = {"source": "register", "name": "naive"}
config = {"reward": {"custom_reward_function": function, "reward_manager": manager}}
manager = load_reward_manager(OmegaConf.create(config), Tokenizer())
def row(answer):
    ids = torch.tensor([list(answer.encode())])
    tensors = TensorDict({"responses": ids, "attention_mask": torch.ones_like(ids)}, batch_size=1)
    given = {"data_source": "d", "reward_model": {"ground_truth": "p"}, "extra_info": {}}
    fields = {name: np.array([value], dtype=object) for name, value in given.items()}
    return DataProto(batch=tensors, non_tensor_batch=fields)
async def main():
    manager.loop = asyncio.get_running_loop()
    found = [(await manager.run_single(row(each)))["reward_score"] for each in ("right", "wrong")]
    try:
        await manager.run_single(row("hopeless"))
    except Exception as error:
        found.append(type(error).__name__)
    print("RESULT", json.dumps(found))
asyncio.run(main())
"""
SLIME = """
import asyncio, json, sys
from types import SimpleNamespace
from slime.rollout.rm_hub import async_rm, batched_async_rm
from slime.utils.misc import load_function
from slime.utils.types import Sample
room = "forge.adapters.slime."
args = SimpleNamespace(
    custom_rm_path=room + "compute_score", rm_url=sys.argv[1], reward_key=None,
    custom_reward_post_process_path=room + "group_rewards", grpo_std_normalization=False)
texts = ("right", "wrong", "hopeless")
samples = [Sample(response=each, label="p", group_index=0, prompt="p") for each in texts]
async def main():
    samples[0].reward = await async_rm(args, samples[0])
    for one, reward in zip(samples[1:], await batched_async_rm(args, samples[1:])):
        one.reward = reward
asyncio.run(main())
raw, centred = load_function(args.custom_reward_post_process_path)(args, samples)
print("RESULT", json.dumps([raw, centred, [one.remove_sample for one in samples]]))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as found:
        yield found


def python_of(name: str, *paths: Path | str) -> tuple[str, dict[str, str]]:
    """The interpreter that has a framework and its environment; skips the test without one."""
    path = ":".join(map(str, (ROOT, *paths)))
    return python_with(name, path=path), {**os.environ, "PYTHONPATH": path}


def result_of(command: list[str], env: dict[str, str]) -> Any:
    ran = subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=240
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.rpartition("RESULT ")[2])


def test_verl_scores_rows(server):
    python, env = python_of("verl")
    assert result_of([python, "-c", VERL, server.url], env) == [0.8, 0.3, "NoScore"]


def test_slime_scores_samples_and_centres_their_group(server):
    python, env = python_of("slime", os.environ.get("FORGE_SLIME_PATH", ""))
    raw, centred, removed = result_of([python, "-c", SLIME, server.url], env)
    assert raw == [0.8, 0.3, 0.0]
    assert centred == pytest.approx([0.25, -0.25, 0.0])
    assert removed == [False, False, True]


@pytest.mark.parametrize("model", [pytest.param(WRONG, marks=pytest.mark.frameworks), HOPELESS])
def test_verifiers_evaluates_episodes_of_two_turns(server, tmp_path, model):
    python, env = python_of("verifiers", ROOT / "examples")
    (tmp_path / "1_add.py").write_text(SOURCE)
    command = [
        str(Path(python).parent / "vf-eval"), "forge_kernels", "--env.url", server.url,
        "--env.taskset.problems", str(tmp_path), "-n", "1", "-r", "2", "--no-push", "--no-rich",
        "-m", model, "--client.base-url", f"{server.url}/v1", "-o", str(tmp_path),
        "--run.dir", "run",
    ]  # fmt: skip
    keys = {"OPENAI_API_KEY": "x", "PRIME_API_KEY": "x"}
    ran = subprocess.run(
        command, env={**env, **keys}, capture_output=True, text=True, check=False, timeout=240
    )  # fmt: skip
    lines = (tmp_path / "run" / "traces.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    traces = [trace for each in found for trace in each.get("traces", [each])]
    assert len(traces) == 2, ran.stderr[-3000:]
    if model == HOPELESS:
        assert "NoScore" in json.dumps(found)
        assert not any(trace["rewards"] for trace in traces)
        return
    returns = turn_returns([0.3, 0.8], gamma=0.4, max_turns=3)
    for trace in traces:
        assert trace["rewards"]["kernel"]["score"] == pytest.approx(returns[0])
        assert trace["metrics"] == pytest.approx({"return_0": returns[0], "return_1": returns[1]})
        assert not trace["errors"]
