"""The experiments of the cells: one stage each, on a model of 40 kB that is trained once.

`FORGE_CHAOS_ENGINE` names the engine (default: the one that quickstart gets).
"""

import os
from pathlib import Path

from tests.chaos.cells import Cell, Fault, Target
from tests.chaos.machine import PYTHON_PATH
from tests.e2e.experiments import Taught

PACE = 4 if (os.cpu_count() or 1) >= 8 else 1
"""Factor of the steps and of an evaluation's deadlines: on a fast machine a short run ends before
the driver has met its phase."""
STEPS = {"eval": 0, "sft": 24 * PACE, "grpo": 16 * PACE}
HEAD = """\
name = "x"
[prompt]
preset = "tiny"
[model]
path = "{model}"
[problems]
source = "dir"
path = "{problems}"
num_heldout = 1
allow_flagged = true
[data]
source = "file"
path = "{rows}"
[serve]
engine = "{engine}"
request_timeout_s = {request_timeout_s}
[judge]
workers = 1
compile_timeout_s = {judged_s}
correct_timeout_s = {judged_s}
[reward]
compile_error = -1.0
[rollout]
group_size = 4
groups_per_step = 1
max_turns = 1
max_completion_tokens = {max_tokens}
max_replacements = 8.0
max_staleness = 1
[store]
texts = "plain"
min_free_bytes = {min_free_bytes}
"""
STAGES = {
    "eval": """\
[[stage]]
kind = "eval"
samples = 8
greedy = false
max_turns = 1
""",
    "sft": f"""\
[[stage]]
kind = "sft"
steps = {STEPS["sft"]}
batch_size = 2
learning_rate = 1e-6
save_every = 4
step_timeout_s = {{step_timeout_s}}
""",
    "grpo": f"""\
[[stage]]
kind = "grpo"
steps = {STEPS["grpo"]}
learning_rate = 1e-6
save_every = 2
step_timeout_s = {{step_timeout_s}}
""",
}
NOTIFY = '[notify]\ncommand = "true"\ntimeout_s = 3\n'
SINK = '[sinks]\nto = ["tensorboard"]\n'


def experiment_of(cell: Cell, taught: Taught) -> str:
    model = "stuck" if cell.stage == "eval" else "loops" if cell.loops else "model"
    is_stuck = cell.fault is Fault.STOP
    text = HEAD.format(
        model=taught.model(model),
        problems=taught.problems(),
        rows=taught.rows(),
        engine=os.environ.get("FORGE_CHAOS_ENGINE", "auto"),
        request_timeout_s=15.0 if is_stuck and cell.target is Target.ENGINE else 300.0,
        judged_s=2 * PACE if cell.stage == "eval" else 2,
        max_tokens=16 if model == "model" else 48,
        min_free_bytes=50 << 20 if cell.fault is Fault.DISK_LOW else 0,
    )
    text += NOTIFY if cell.target is Target.NOTIFY else ""
    text += SINK if cell.target is Target.SINK else ""
    timeout_s = 45.0 if is_stuck and cell.target in (Target.TRAINER, Target.RANK) else 600.0
    return text + STAGES[cell.stage].format(step_timeout_s=timeout_s)


RANKS = """\
import sys
if sys.orig_argv[1:3] == ["-m", "forge"] and sys.orig_argv[3:4] in (["run"], ["resume"]):
    from forge.train.handle import TrainerJob
    TrainerJob.__init__.__kwdefaults__["num_ranks"] = 2
"""
"""`sitecustomize` that gives trainers two ranks on the CPU, which no key does."""


def ranks_env(folder: Path) -> dict[str, str]:
    """Environment of commands whose trainers have two ranks on the CPU."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(RANKS)
    return {"PYTHONPATH": f"{PYTHON_PATH}{os.pathsep}{folder}"}
