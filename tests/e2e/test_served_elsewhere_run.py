"""GRPO with its engine in another process, `forge serve --weights`, as on a second machine: new
weights are sent over HTTP, also after the server was killed and after the run was.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.e2e.commands import kill, last_trained, opened, until, wait_for
from tests.e2e.experiments import GRPO_EXPERIMENT
from tests.listening import listening, start

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]

SERVER = """
name = "there"
[prompt]
preset = "tiny"
[model]
path = "model"
{lora}
[[stage]]
kind = "eval"
"""
LORA = "[model.lora]\nr = 4\n"
TOKEN = "sesame"


def begin(cwd: Path, *argv: str) -> subprocess.Popen[str]:
    return start(*argv, cwd=cwd, FORGE_SERVE_TOKEN=TOKEN, ELSEWHERE=TOKEN)


@contextmanager
def serving(project: Path, *, listen: str = "127.0.0.1:0") -> Iterator[tuple[str, int]]:
    """URL and pid of a server, which is ended on exit if it still runs."""
    argv = ("serve", "there.toml", "--weights", "--listen", listen)
    with listening(*argv, cwd=project, FORGE_SERVE_TOKEN=TOKEN) as (url, process):
        yield url, process.pid


def write_project(project: Path, url: str, *, lora: str = "") -> None:
    serve = f'[serve]\nurl = ["{url}"]\napi_key_env = "ELSEWHERE"\n'
    text = GRPO_EXPERIMENT.replace("[judge]", f"{lora}{serve}[judge]")
    (project / "grpo.toml").write_text(text)


def finish(process: subprocess.Popen[str]) -> None:
    _, said = process.communicate(timeout=200)
    assert process.returncode == 0, said


def check(root: Path, *, attempts: int) -> None:
    """Every turn has one version, a published one, at most a step behind; all steps are trained."""
    with opened(root) as db:
        (steps, oldest) = db.execute(
            "SELECT count(DISTINCT step), max(staleness) FROM v_samples"
        ).fetchone()
        mixed = db.execute("SELECT count(*) FROM turns WHERE min_version != max_version").fetchone()
        unknown = db.execute(
            "SELECT count(*) FROM turns WHERE min_version > 0"
            " AND min_version NOT IN (SELECT version FROM policies)"
        ).fetchone()
        used = db.execute("SELECT count(DISTINCT min_version) FROM turns").fetchone()
        gap = db.execute("SELECT max(probe_gap), count(*) FROM policies").fetchone()
        last = db.execute("SELECT max(attempt) FROM policies").fetchone()
    assert steps == 9
    assert oldest <= 1
    assert (mixed, unknown) == ((0,), (0,))
    assert used[0] >= 8
    assert gap[0] < 1e-3
    assert gap[1] >= 9
    assert last == (attempts,)


@pytest.mark.parametrize("lora", ["", LORA], ids=["full", "adapter"])
def test_grpo_trains_with_an_engine_behind_a_url(grpo_project: Path, lora: str) -> None:
    (grpo_project / "there.toml").write_text(SERVER.format(lora=lora))
    with serving(grpo_project) as (url, _):
        write_project(grpo_project, url, lora=lora)
        finish(begin(grpo_project, "run", "grpo.toml"))
    check(grpo_project / "runs" / "grpo-1", attempts=1)
    assert not list((grpo_project / "runs").glob(".serve-*"))


def test_the_server_and_then_the_run_are_killed_and_nothing_is_lost(grpo_project: Path) -> None:
    (grpo_project / "there.toml").write_text(SERVER.format(lora=""))
    root = grpo_project / "runs" / "grpo-1"
    with serving(grpo_project) as (url, pid):
        write_project(grpo_project, url)
        run = begin(grpo_project, "run", "grpo.toml")
        until(run, lambda: last_trained(root) >= 2, what="step 2 to be trained")
        engines = psutil.Process(pid).children(recursive=True)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not any(e.is_running() for e in engines), timeout_s=10, what="their end")
    with serving(grpo_project, listen=url.removeprefix("http://")):
        until(run, lambda: last_trained(root) >= 5, what="step 5 to be trained")
        kill(run, root)
        finish(begin(grpo_project, "resume", "grpo-1"))
    check(root, attempts=2)
