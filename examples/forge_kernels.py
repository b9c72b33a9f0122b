"""A taskset of kernels for verifiers and prime-rl, which import it by its name: `forge_kernels`.

    forge judge --serve --listen 127.0.0.1:8200 &
    export PYTHONPATH=examples FORGE_JUDGE_URL=http://127.0.0.1:8200
    vf-eval forge_kernels --env.taskset.problems KernelBench/level1 -n 5 --no-push

In prime-rl the same options are in the environment of a source, here as of its commit 559b4477:

    [[orchestrator.train.source]]
    [orchestrator.train.source.env]
    turns = 3
    [orchestrator.train.source.env.taskset]
    id = "forge_kernels"
    problems = "KernelBench/level1"
"""

from forge.adapters.verifiers import KernelEnv, KernelTaskset

__all__ = ["KernelEnv", "KernelTaskset"]
