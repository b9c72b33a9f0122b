"""`[prompt]`, `[rollout]`, `[reward]` and `[eval]`: the texts that a model is asked with, sampling
rollouts, scoring verdicts, measuring a policy.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from forge.config.schema.base import PathValue, Positive, Share, Table

PresetName = Literal["tiny", "standard", "kernelbench", "tritonforge"]

ToolName = Literal["docs", "run", "profile"]

TagName = Annotated[
    str,
    Field(
        pattern=r"^([A-Za-z][A-Za-z0-9_-]{0,31})?$",
        json_schema_extra={"allowed": "the name of a tag, such as think; empty for none"},
    ),
]


class PromptTable(Table):
    """`[prompt]`: the texts that a model is asked with. Training, evaluation and SFT share them."""

    preset: PresetName = "standard"
    """Templates of the messages. standard: rules of the judge, format of an answer, an example,
    facts of the device. kernelbench: the structure of KernelBench's one-shot prompt. tritonforge:
    that of TritonForge's checkpoints. tiny: one sentence, for tiny models, whose context is short.
    """
    system: PathValue | None = None
    """Jinja template of the system message, in place of the preset's; relative to this file or to
    the working directory, as the next two. An empty message is left out."""
    first: PathValue | None = None
    """Jinja template of the first message about a problem, in place of the preset's."""
    feedback: PathValue | None = None
    """Jinja template of the message about a verdict, in place of the preset's."""
    example: PathValue | Literal[False] | None = None
    """Worked example: false for none, or a text file with two fenced blocks, a problem and its
    answer. Absent: the preset's, the sum of two tensors."""
    hardware: bool = True
    """State the GPU of the judges with its memory, bandwidth and peaks, where the templates do."""
    baseline: bool = True
    """State the reference's time and the share of the roofline in the message about a verdict, once
    they are measured."""
    attempts: Literal["all", "last"] = "all"
    """Earlier attempts in the conversation: all that fit the context, or the last one alone."""
    thinking: TagName = "think"
    """Tag around a model's thinking, which is no part of its answer: think for <think>…</think>.
    Empty for none: where the chat template has a switch (enable_thinking, thinking), it is off."""


FUNCTION_RULE = Field(
    pattern=r"^.*[^:/]\.py:[A-Za-z_]\w*$",
    json_schema_extra={"allowed": 'a file and a function of it, such as "my_rewards.py:score"'},
)


class RewardTable(Table):
    """`[reward]`: terms of the reward of one verdict. Each is stored."""

    function: Annotated[str | None, FUNCTION_RULE] = None
    """Function of a file, "my_rewards.py:score": a verdict in, a dict of named numbers out, whose
    sum is the reward, in place of the weights below; relative to this file or to the working
    directory. It is called in a process of its own, without a sandbox."""
    function_per: Literal["turn", "group"] = "turn"
    """Argument of function. turn: the verdict of one turn. group: a list of a group's rollouts,
    each the list of its turns' verdicts; the result has the same form."""
    function_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 10.0
    """Maximum time of one call of function; the run ends if it takes longer."""
    compiled: float = 0.3
    """Reward if a kernel of the candidate's own compiled, was launched and wrote the output."""
    correct: float = 0.5
    """Reward if all checked outputs agree with the reference."""
    own_share: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the share of the work that the candidate's own kernels do, of a correct one; for
    judge.policy = "hybrid"."""
    speedup: float = 0.2
    """Weight of the speed of a correct kernel that was timed."""
    shape: Literal["log", "linear"] = "log"
    """Speed of a kernel: ln(s / speedup_floor), or s - speedup_floor, with s = min(speedup_low,
    speedup_cap). linear pays the fastest kernels the most."""
    improvement: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the speed that a correct kernel gains over the attempt before, if that was correct,
    too. At most so much that a slow first answer does not pay."""
    speedup_floor: Annotated[float, Field(gt=0)] = 1.0
    """Speed-up that earns nothing, nor does a smaller one; below speedup_cap."""
    speedup_cap: Annotated[float, Field(gt=1)] = 10.0
    """Largest speed-up that counts; larger ones are rewarded as this one."""
    rejected: Annotated[float, Field(le=0)] = 0.0
    """Amount added for status rejected."""
    compile_error: Annotated[float, Field(le=0)] = 0.0
    """Amount added for status compile_error."""
    stop_at_speedup: Annotated[float, Field(gt=0)] = 2.0
    """Speed-up at which a correct kernel ends its rollout. Without timing, any correct kernel ends
    it."""


class RolloutTable(Table):
    """`[rollout]`: sampling groups of rollouts for GRPO."""

    group_size: Annotated[int, Field(ge=2)] = 8
    """Rollouts of one problem in a group."""
    groups_per_step: Positive = 8
    """Number of groups in a batch. Only groups whose rewards differ count."""
    max_turns: Annotated[int, Field(ge=1, le=16)] = 3
    """Maximum attempts in a rollout."""
    gamma: Share = 0.4
    """Discount of later turns' rewards: return_t = Σ_j γ^j r_(t+j), the last reward repeated."""
    credit: Literal["turn", "kevin", "trajectory"] = "turn"
    """Returns of turns. turn: each turn has its own. kevin: the same, and the sum ends with the
    rollout instead of repeating the last reward. trajectory: all turns have the return of the first
    (TritonForge)."""
    advantage: Literal["group", "turn"] = "group"
    """Answers that share a baseline: all of a group, or those of the same turn."""
    leave_one_out: bool = False
    """Compare each answer with the mean of the others (RLOO), not of all."""
    scale: Literal["group", "none"] = "group"
    """Scaling of advantages: by the group's standard deviation, or none (Dr. GRPO)."""
    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Sampling temperature. There is no top-p or top-k, since truncation biases the ratios."""
    max_completion_tokens: Annotated[int, Field(ge=8)] = 384
    """Maximum length of one completion."""
    max_staleness: Annotated[int, Field(ge=0, le=8)] = 1
    """Maximum number of steps that generation may run ahead of training. 0: synchronous, on-policy.
    1: the next batch is generated while the trainer steps."""
    sampler: Literal["uniform", "priority"] = "uniform"
    """Order of problems. uniform: each equally often. priority: by the variance of their recent
    rewards, those of the run's earlier searches and GRPO stages included; problems whose groups
    would be flat, unsolved or solved by all, are nearly skipped."""
    replay: Positive = 1
    """Maximum uses of a group in training, within max_staleness."""
    groups_in_flight: Positive | Literal["auto"] = "auto"
    """Groups sampled at the same time. auto: as many as engines and judges can handle."""
    in_flight: Literal["turn", "keep"] = "turn"
    """Arrival of new weights. turn: after the running turns end. keep: in the middle of them."""
    max_replacements: Annotated[float, Field(ge=0)] = 1.0
    """Maximum groups per step that replace flat ones (equal rewards), as a multiple of
    groups_per_step."""
    tools: list[ToolName] = Field(default_factory=list[ToolName])
    """Tools that a turn may call before its answer, in training, evaluations and searches. docs:
    search Triton's reference. run: run the candidate on sizes of the model's choice. profile: its
    launches, and their times on a GPU. The tokens of their replies are not trained."""
    tool_calls: Annotated[int, Field(ge=1, le=32)] = 4
    """Maximum calls of tools in a turn. Each message of a turn has up to max_completion_tokens."""
    train_truncated: bool = True
    """Train on completions that max_completion_tokens cut off; if false they are masked."""


class EvalTable(Table):
    """`[eval]`: measuring a policy on held-out problems."""

    samples: Positive = 4
    """Rollouts per problem at `temperature`."""
    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Sampling temperature of these. A small model that one unlikely token leads astray does better
    below 1."""
    greedy: bool = True
    """One more rollout per problem at temperature 0."""
    max_turns: Annotated[int, Field(ge=1, le=16)] = 3
    """Maximum attempts in a rollout. pass@1 counts the first, multi-turn pass@1 counts any."""
    every: Annotated[int, Field(ge=0)] = 0
    """Steps between evaluations inside a grpo stage; 0 means none."""
    num_problems: Positive = 16
    """Held-out problems in evaluations inside a stage, always the same ones."""
    seed: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    """Seed of the answers in evaluations; absent means that of the experiment. Each answer's seed
    also depends on its problem, sample and turn, on nothing else."""
    both_baselines: bool = False
    """Measure speed-ups against eager and torch.compile in eval stages: the best kernel of each
    problem is judged again with the other judge.baseline. On GPUs with judges of the run's own."""
    suite: str | None = None
    """Name of the problems for results.json and leaderboard.md, which the run then writes at its
    end. Set by "forge eval"."""
    label: str | None = None
    """Name of the model in these files; absent means model.path or serve.model_name."""
