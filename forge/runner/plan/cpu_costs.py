"""Costs on a CPU: seconds of one core and bytes, from sizes. `predict` and `plan` add them up.

The constants were measured on a 2-core x86 machine with small models and are within a factor of two
elsewhere; `bench/` measures them again.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.errors import ConfigError
from forge.runner.plan.model_shape import model_shape
from forge.train.gguf import read_gguf

if TYPE_CHECKING:
    from forge.config.schema import ModelTable, ServeTable

TRAIN_S_PER_TOKEN = 41e-6
"""Overhead of forward and backward a token: attention, optimizer, Python. Fitted to 9.0k tok/s at
0.86M parameters and 5.1k at 1.9M."""
TRAIN_S_PER_TOKEN_PARAM = 82e-12
"""6 FLOPs at 73 GFLOP/s."""
GENERATE_S_PER_TOKEN = 120e-6
"""Engine overhead a token in a batch of 32: sampling, scheduling, HTTP."""
GENERATE_S_PER_TOKEN_PARAM = 110e-12
"""2 FLOPs in f32, memory-bound."""
JUDGE_S = 0.13
"""Seconds a candidate: fork, sandbox, interpreter runs on two inputs, ghost replay, compilation to
ttir."""
JUDGE_GPU_S = 0.5
"""Wall seconds a candidate on one card, if each has another problem, whose inputs must be drawn:
319 took 158 s on an H200, four at once."""
SCREEN_S = 0.01
"""Seconds a completion without a kernel, which ends before the sandbox."""
START_S = {"supervisor": 1.0, "replica": 1.5, "judge": 6.0, "trainer": 7.0, "task": 6.0}
"""Seconds of imports by kind of process. A judge has an oracle and a zygote, which import torch."""

ROW_TOKENS = 300
"""Mean SFT row of the generator: prompt 85, answer 215."""
PROMPT_TOKENS = 85
ANSWER_TOKENS = 215
RETRY_SHARE = 0.4
"""Share of rollouts that take another turn if allowed, after SFT."""
REPLACED_SHARE = 0.3
"""Groups replaced for lack of signal, per group trained."""

SUPERVISOR_BYTES = 200 << 20
TORCH_PROCESS_BYTES = 450 << 20
"""A process after the import of torch, triton or transformers."""
JUDGE_BYTES = 2 * TORCH_PROCESS_BYTES
"""Oracle and zygote. Runners share the zygote's pages."""
REPLICA_BYTES = 250 << 20
GPU_PROCESS_BYTES = 4 << 30
"""Host memory of a process whose model is on a GPU: torch, pinned buffers, a file being read."""
TRAIN_BYTES_PER_PARAM = 16
"""f32 weights, gradients and two Adam moments."""
TURN_BYTES = 8_000
"""Growth of run.db and tokens.db by a turn."""
CHECKPOINT_BYTES_PER_PARAM = 12
EXTRA_CHECKPOINTS = 2
"""Kept beside the newest ones: the best, and one that is being written."""


def count_params(model: ModelTable) -> int | None:
    """Parameters of a run's model, by its shape or else by its files; None without either."""
    folder = Path(model.path or "").expanduser()
    if model.is_gguf and folder.is_file():
        return read_gguf(folder).num_params
    if shape := model_shape(model):
        return shape.params
    files = list(folder.glob("*.safetensors")) if model.path and folder.is_dir() else []
    return sum(map(_params_of, files)) or None


def _params_of(file: Path) -> int:
    """Values in a safetensors file, by the shapes in its header. Raises ConfigError."""
    from safetensors import SafetensorError, safe_open

    try:
        opened: Any = safe_open(file, framework="np")
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{file}: {error}") from error
    with opened as tensors:
        return sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118


def train_s(tokens: float, *, params: int) -> float:
    """Core seconds of training on tokens."""
    return tokens * (TRAIN_S_PER_TOKEN + params * TRAIN_S_PER_TOKEN_PARAM)


def generate_s(tokens: float, *, params: int) -> float:
    """Core seconds of generating tokens in a full batch."""
    return tokens * (GENERATE_S_PER_TOKEN + params * GENERATE_S_PER_TOKEN_PARAM)


def turns_of(max_turns: int) -> float:
    """Mean turns of a rollout after SFT."""
    return 1 + RETRY_SHARE * (max_turns - 1)


def replica_bytes(serve: ServeTable, model: ModelTable, *, params: int) -> int:
    """Host memory of one engine on the CPU: weights and KV cache."""
    width, shape = 4 if serve.precision == "exact" else 2, model_shape(model)
    kv = serve.slots * shape.kv_of(serve.context_tokens) * width if shape else 0
    return REPLICA_BYTES + params * width + kv
