"""`forge.judge`, `forge.ajudge` and `forge.judges`: verdicts of judges that this program starts;
`forge.reward`.

    with forge.judges(workers=4) as pool:
        for verdict in pool.judge_many([(problem, answer), ...]): ...

Imports nothing at first, so that `from forge import judge` takes milliseconds.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

    from forge.adapters.pools import JudgePool
    from forge.adapters.verdict import Reward, Verdict
    from forge.records.problem import ReferenceModule


class CallOptions(TypedDict, total=False):
    """Options of `judge`, `ajudge` and `judges`; `judge` describes them."""

    device: str
    policy: Literal["own", "hybrid"] | None
    protocol: Literal["forge", "kernelbench", "drkernel"]
    timeout: float | None
    settings: Mapping[str, Any] | None
    problems: str | Path | None
    overrides: Mapping[str, Any] | None


@contextmanager
def judges(*, workers: int | None = None, **options: Unpack[CallOptions]) -> Generator[JudgePool]:
    """Judges that stay ready for many answers, for `with`.

    Args:
        workers: number of judges on a CPU; absent: one per core. With GPUs: one per GPU.
        options: device, policy, protocol, timeout, settings, problems and overrides, as of
            `forge.judge`.

    Raises:
        ConfigError: an argument that is not allowed.
        MachineError: no such GPU, or no sandbox works on this machine.
    """
    from forge.adapters.pools import choose, open_judges

    with open_judges(choose(workers=workers, **options)) as pool:
        yield pool


def judge(
    problem: str | Path | ReferenceModule,
    answer: str | Path,
    *,
    timed: bool | None = None,
    **options: Unpack[CallOptions],
) -> Verdict:
    """The verdict on one answer, by a judge that is started for it, which takes seconds.
    `forge.judges` keeps judges ready.

    Args:
        problem: path of a problem file, its source (KernelBench's layout, or a bare torch
            function), or a name among `problems`: `level=1 problem_id=19`, `19_ReLU`.
        answer: code, or a whole answer of a model with thinking and fenced blocks. Only a `Path`
            is read as a file: a model's text must not name one.
        timed: time a correct answer. Absent: if there is a GPU.
        device: auto (all GPUs, or the CPU), cpu, cuda, cuda:N.
        policy: own: besides the answer's kernels torch may only move data; hybrid: it may compute.
            Absent: the protocol's own: own under forge, hybrid under the others.
        protocol: forge, kernelbench or drkernel: inputs, tolerance, static check and policy.
        timeout: maximum time of each phase, in seconds.
        settings: further keys of `[judge]`: `{"also": ["kernelbench"]}`; `forge keys judge` lists
            them.
        problems: directory or file of rows with the problems that names refer to, such as a
            checkout of KernelBench.
        overrides: values for module constants of problems, as in `[problems] overrides`:
            `{"batch_size": 16, "3_matmul": {"N": 512}}`. `--override` of `forge judge` says the
            same.

    Raises:
        ConfigError: an argument that cannot be used.
        MachineError: no such GPU, or no sandbox works on this machine. A fault during the
            judgement is a verdict with `infra` instead.
    """
    from forge.adapters.pools import choose, judged_once

    with judged_once(choose(workers=1, **options), problem, answer, timed=timed) as verdict:
        return verdict.result()


async def ajudge(
    problem: str | Path | ReferenceModule,
    answer: str | Path,
    *,
    timed: bool | None = None,
    **options: Unpack[CallOptions],
) -> Verdict:
    """`judge` in an asyncio event loop, which it does not block; arguments and errors as there."""
    from asyncio import wrap_future

    from forge.adapters.pools import choose, judged_once

    with judged_once(choose(workers=1, **options), problem, answer, timed=timed) as verdict:
        return await wrap_future(verdict)


def reward(verdict: Verdict, weights: Mapping[str, Any] | None = None) -> Reward:
    """The reward of a verdict.

    Args:
        weights: keys of `[reward]` that differ from their defaults: `{"correct": 1.0, "speedup":
            0.5}`. `forge keys reward` lists them.

    Returns:
        The sum of the terms, and the terms. The value is None for a verdict that says nothing
        about the answer (`verdict.scored` is False): mask such an answer, do not punish it.

    Raises:
        ConfigError: an unknown key, or a value that is not allowed.
    """
    from forge.adapters.answering import read_weights, reward_of

    return reward_of(verdict, read_weights(weights))
