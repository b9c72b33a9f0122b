"""An OpenEnv client from PyPI plays against `forge judge --serve --openenv`, with real judges.

`make frameworks` installs the client; FORGE_OPENENV_PYTHON names another interpreter that has one.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.interpreters import python_with
from tests.evalpool.judged import CODE, SOURCE
from tests.listening import listening

pytestmark = pytest.mark.long

PLAYER = """
import json, sys
from openenv.core.generic_client import GenericEnvClient
url, answers, num = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
envs = [GenericEnvClient(base_url=url).sync() for _ in range(num)]
seen = [env.reset(problem_id="L1_1_AddOne") for env in envs]
turns = [[(r.reward, r.done, r.observation["correctness_pass"])] for r in seen]
for answer in answers:
    for env, mine in zip(envs, turns):
        r = env.step({"code": answer})
        mine.append((r.reward, r.done, r.observation["correctness_pass"]))
states = [env.state() for env in envs]
for env in envs:
    env.close()
print(json.dumps({"turns": turns, "states": states}))
"""


def play(client: str, url: str, *answers: str, num: int = 1) -> dict[str, Any]:
    ran = subprocess.run(
        [client, "-c", PLAYER, url, json.dumps(answers), str(num)],
        capture_output=True, text=True, check=False, timeout=100, env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def client() -> str:
    return python_with("openenv")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The URL of an environment with one problem."""
    (tmp_path / "level1").mkdir()
    (tmp_path / "level1" / "1_AddOne.py").write_text(SOURCE)
    argv = ("judge", str(tmp_path), "--serve", "--openenv", "--listen", "127.0.0.1:0")
    with listening(*argv, "--workers", "1", "--device", "cpu") as (at, _):
        yield at


@pytest.mark.frameworks
def test_a_client_from_pypi_plays_three_turns(client, url):
    answers = (CODE.replace("tl.store", "tl.stor"), CODE.replace("+ 1", "+ 2"), CODE)
    played = play(client, url, *answers)
    assert played["turns"] == [
        [[0.0, False, None], [0.0, False, None], [0.3, False, False], [0.8, True, True]]
    ]
    assert played["states"][0]["solved"]
    assert played["states"][0]["step_count"] == 3


def test_clients_at_the_same_time_have_episodes_of_their_own(client, url):
    played = play(client, url, CODE.replace("+ 1", "+ 2"), f"```python\n{CODE}```", num=16)
    assert all(turns[-1] == [0.8, True, True] for turns in played["turns"])
    assert len({state["episode_id"] for state in played["states"]}) == 16
