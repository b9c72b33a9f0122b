"""A taskset of kernels for verifiers and prime-rl, which import it by its name: `forge_kernels`.

    forge judge --serve --listen 127.0.0.1:8200 &
    export PYTHONPATH=examples FORGE_JUDGE_URL=http://127.0.0.1:8200
    vf-eval forge_kernels --env.taskset.problems KernelBench/level1 -n 5 --no-push

In prime-rl, the same options are in a file: `[orchestrator.train.env]`, as of its `docs/`.
"""

from forge.adapters.verifiers import KernelEnv, KernelTaskset

__all__ = ["KernelEnv", "KernelTaskset"]
