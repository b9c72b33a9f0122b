"""The tables of an experiment file: frozen pydantic models with types, ranges and defaults; and the
path of a key. `build` has those of the settings file of `forge data build`.

`forge keys` and error messages print the fields' docstrings; a key without one fails a test.
Imported by every room that takes settings. Never imports loading or checking. Validation is strict:
`true` is not an integer and `"8"` is not a number. Unknown keys are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeGuard, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from forge.records import Split, split_step, stage_label
from forge.records.problem import MAX_SHAPES
from forge.records.verdict import POLICIES, PolicyName, join_rules

KeyPath = tuple[str | int, ...]
"""Path of a key: `("stage", 1, "steps")` is `steps` of the second `[[stage]]`."""

TomlValue: TypeAlias = (
    "str | int | float | bool | datetime | date | time | list[TomlValue] | TomlTable"
)
TomlTable: TypeAlias = dict[str, TomlValue]

BARE_PART = re.compile(r"[\w-]+")


class Table(BaseModel):
    """Base of every table."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        defer_build=True,  # tables are built once, as parts of Experiment
    )


PathValue = Annotated[Path, Field(strict=False)]
Positive = Annotated[int, Field(ge=1)]
NumProcesses = Annotated[int, Field(ge=1, le=1024)]
"""Number of judges or engines; a plan has a line for each."""
Share = Annotated[float, Field(ge=0.0, le=1.0)]


def rule(allowed: str, **limits: Any) -> Any:
    """A rule for a field, and what it allows in words."""
    return Field(json_schema_extra={"allowed": allowed}, **limits)


NAME_RULE = rule(
    "1 to 64 letters, digits, . _ -, starting with letter or digit",
    pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
)
"""Names that are part of a path."""


def dotted(path: KeyPath) -> str:
    """A key as it is written in `--set`: `stage.1.steps`, `serve.env."A B"`. Always one line."""
    return ".".join(
        str(part) if BARE_PART.fullmatch(str(part)) else json.dumps(part) for part in path
    )


JUDGE_URL = re.compile(r"https?://[^/\s]+|unix:/\S+")


DistributionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?$")]
ProtocolName = Literal["forge", "kernelbench", "drkernel"]
RulesName = Literal[
    "forge", "kernelbench", "drkernel", "forge:hybrid", "kernelbench:own", "drkernel:own"
]
"""A protocol under its own policy; after a colon, under the other one."""


TARGET_RULE = rule(
    "cuda:NUMBER or hip:gfxNAME, such as hip:gfx942",
    pattern=r"^(cuda:\d{2,3}|hip:gfx[0-9a-f]{3,4})$",
)


class JudgeTable(Table):
    """`[judge]`: compiling, checking and timing candidates."""

    workers: NumProcesses = 2
    """Judges on a machine without GPUs; with GPUs there is one judge per GPU."""
    url: list[str] = Field(default_factory=list)
    """Addresses of "forge judge --serve" pools that replace local judges: http://HOST:PORT or
    unix:/PATH. FORGE_JUDGE_TOKEN holds their token. Each pool judges by its own settings."""
    isolation: Literal["auto", "namespaces", "landlock", "none"] = "auto"
    """Sandbox of candidates. auto: the strongest level that works here; a machine without
    one is refused. landlock: a weaker level, for machines that allow no more."""
    compile: Literal["ttir", "binary"] = "ttir"
    """Depth of compilation without a GPU: Triton IR (5 ms), or a binary (1 s if not cached)."""
    target: Annotated[str, TARGET_RULE] = "cuda:90"
    """GPU that judges without one capture and compile for: cuda:90 (H100), hip:gfx942 (MI300X), or
    any other that the installed Triton compiles for. A judge with a GPU judges for that GPU."""
    num_inputs: Annotated[int, Field(ge=2, le=16)] = 4
    """Independent random inputs that a candidate must answer correctly, each of another
    distribution: as given, with spikes, of unlike scale, one more; those behind the first have edge
    values. With one, returning the output of the first call would pass."""
    protocol: ProtocolName = "forge"
    """Rules of the verdict. forge: inputs as given, spiked and scaled, tolerances by row and
    column. kernelbench, drkernel: five sets as given and torch.allclose, as those projects check
    (1e-4 and 1e-2 in fp32), KernelBench's static check, and judge.policy = "hybrid" unless that key
    is set. Times are measured in the same way under each."""
    also: list[RulesName] = Field(default_factory=list["RulesName"])
    """Further protocols that judge each candidate, for comparison alone: their verdicts are stored
    beside the one that counts (v_protocols). Each has its own policy, and with a policy after a
    colon that one: ["kernelbench", "kernelbench:own"]. Each takes as long as the first."""
    compile_timeout_s: Annotated[float, Field(gt=0)] = 10.0
    """Maximum time for import, first call and compilation of a candidate."""
    correct_timeout_s: Annotated[float, Field(gt=0)] = 10.0
    """Maximum time for all checked calls together."""
    memory_bytes: Annotated[int, Field(ge=1 << 20)] = 4 << 30
    """Memory limit of the process that runs a candidate."""
    policy: PolicyName = "own"
    """Rule for torch's work beside a candidate's kernels. own: torch may move data, do index
    bookkeeping and combine partial results. hybrid: torch may compute too, if a kernel is needed
    for the output. Absent: own under the protocol forge; hybrid under kernelbench and drkernel,
    whose rule it is."""
    tf32: bool = True
    """Allow TF32 in fp32 matrix products on GPUs, for baseline and candidate alike. The tolerance
    of such problems widens by the error of eager with TF32. Under another protocol torch's defaults
    hold in its place: convolutions have TF32, products do not."""
    timing: bool = True
    """Time correct candidates if there is a GPU."""
    baseline: Literal["eager", "compile"] = "eager"
    """Denominator of speed-ups: Model in eager mode, or under torch.compile, which takes up to a
    minute per problem, once."""
    timing_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """Maximum time for warm-up and all timed calls together."""
    min_us: Annotated[float, Field(ge=0)] = 100.0
    """Kernel time below which the clock's resolution widens the interval of a speed-up."""
    site_packages: Annotated[
        list[DistributionName], rule("names of distributions that pip lists, without a version")
    ] = []
    """Distributions that references may import beside torch, triton and numpy, by the names that
    pip lists: ["einops", "transformers"]. What they require is shown with them. Candidates see none
    of it. transformers builds models with random weights, from configs in the local cache."""
    env: dict[str, str] = Field(default_factory=dict)
    """Additional environment variables of the judges."""

    @model_validator(mode="before")
    @classmethod
    def _follow_protocol(cls, given: Any) -> Any:
        """The policy of the protocol, where none is given."""
        if not isinstance(given, dict):
            return given
        values = cast("dict[str, Any]", given)
        return {"policy": POLICIES.get(str(values.get("protocol")), "own"), **values}

    @property
    def rules(self) -> str:
        """Protocol and policy as in `also`: `kernelbench`, `kernelbench:own`."""
        return join_rules(self.protocol, self.policy)


PresetName = Literal["tiny", "standard", "kernelbench", "tritonforge"]

ToolName = Literal["docs", "run", "profile"]

TAG_RULE = rule(
    "the name of a tag, such as think; empty for none", pattern=r"^([A-Za-z][A-Za-z0-9_-]{0,31})?$"
)


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
    thinking: Annotated[str, TAG_RULE] = "think"
    """Tag around a model's thinking, which is no part of its answer: think for <think>…</think>.
    Empty for none: where the chat template has a switch (enable_thinking, thinking), it is off."""


FUNCTION_RULE = rule(
    'a file and a function of it, such as "my_rewards.py:score"',
    pattern=r"^.*[^:/]\.py:[A-Za-z_]\w*$",
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


Constant = int | Annotated[float, Field(allow_inf_nan=False)] | bool | str
"""Value of a module constant of a problem file. Infinity and NaN have no literal in Python."""

ConstantsTable = dict[str, Constant | dict[str, Constant]]
"""Values of module constants, and tables of such values by a problem's name or number."""

Dtype = Literal["fp32", "fp16", "bf16"]
"""Element types of problems."""


RowFormat = Literal[
    "kernelbench",
    "kernelbook",
    "tritonforge",
    "cuda-agent",
    "drkernel",
    "drkernel-coldstart",
    "harvest",
]
"""Columns of a file of problems."""


HUB_DATASET = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
"""`owner/name`; anything else can only be a path."""

MAX_CHAIN = 4
"""Longest chain of operations in a generated problem; the level of a problem is its length."""
MOST_HELDOUT = 64
"""Default number of held-out problems; of a directory or a file the most."""
SHARED = "shared"
"""Value of `num_heldout` by which evaluations are of the training problems."""


def is_hub_name(text: str) -> bool:
    """True for a text that may name a data set on the hub: `owner/name`, and no file of rows."""
    return bool(HUB_DATASET.fullmatch(text)) and not text.endswith((".json", ".jsonl", ".parquet"))


class SourceTable(Table):
    """Keys of one source of problems: those of `[problems]` and of each `[[problems.sources]]`."""

    source: Literal["generated", "dir", "file"] = "generated"
    """Origin of the problems: the built-in generator, a directory in KernelBench's layout, or the
    rows of a file."""
    path: PathValue | None = None
    """For source = "dir": directory of the problems, searched recursively for *.py. For "file": a
    file of rows (JSON, JSON lines or Parquet), a directory of them, or a data set on the hub, such
    as "GPUMODE/KernelBook". Relative to this file or to the working directory."""
    format: RowFormat = "kernelbench"
    """Columns of the rows; for source = "file". kernelbench: code, level, name, problem_id.
    kernelbook (KernelLLM's data too): python_code, entry_point. tritonforge: label, extra_info.
    cuda-agent: code. drkernel: reward_model. drkernel-coldstart: original_python_code."""
    overrides: ConstantsTable = Field(default_factory=dict)
    """Values for module constants of the problem files, e.g. { batch_size = 16, dim = 256 }; a
    table by a problem's name or number, e.g. { "3_matmul" = { N = 512 } }, for that file alone. For
    source = "dir" or "file"."""
    shapes: list[ConstantsTable] | None = rule(
        f"a list of 1 to {MAX_SHAPES} tables of constants", default=None
    )
    """Shapes of the problem files, e.g. [{ N = 1024 }, { N = 4096, M = 100 }]: a table as in
    overrides each, applied after overrides. A candidate has to be correct at all of them, and its
    speed-up is the geometric mean. A shape counts for the files that have one of its constants. For
    source = "dir" or "file"."""
    include: list[str] = Field(default_factory=list)
    """Glob patterns of files, relative to path; for source = "file" of the problems' ids, such as
    "level1/*". Empty means all; for source = "dir" or "file"."""


class ProblemSource(SourceTable):
    """A `[[problems.sources]]`: one of several sources of problems."""

    name: Annotated[str, NAME_RULE] | None = None
    """Prefix of its problems' ids; needed where two sources have the same ids. Ids of generated
    problems have none."""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Relative frequency of this source in GRPO; absent means its number of problems."""
    use: Literal["both", "train", "heldout"] = "both"
    """Use of its problems. train, heldout: training or evaluation only. both: divided by levels or
    at random."""

    @property
    def label(self) -> str:
        """Its name, `generated`, or the last folder or file of its path."""
        return self.name or ("generated" if self.path is None else self.path.stem)


class ProblemsTable(SourceTable):
    """`[problems]`: the problems to solve."""

    sources: list[ProblemSource] | None = rule(
        "one [[problems.sources]] or more", default=None, min_length=1
    )
    """Several sources of problems, instead of source, path and the other keys of one."""
    train_levels: list[Positive] | None = None
    """Levels to train on, e.g. [1, 2], for problems of directories and files; absent means all that
    are not held out."""
    heldout_levels: list[Positive] | None = None
    """Levels reserved for evaluation, e.g. [3], for problems of directories and files; absent means
    a random choice of num_heldout."""
    duplicates: Literal["refuse", "drop", "allow"] = "refuse"
    """Handling of SFT rows and training problems with the same code as a held-out problem, apart
    from names, comments and sizes. refuse: the run ends. drop: they are left out. allow: they are
    trained on, and evaluations are labelled."""
    sizes: Literal["small", "gpu"] = "small"
    """Tensor sizes of generated problems. small: for judges without a GPU. gpu: large enough for
    100 µs or more on a GPU."""
    dtypes: list[Dtype] = rule('a list of "fp32", "fp16", "bf16"', default=["fp32"], min_length=1)
    """Element types of generated problems: each problem has one of them, at random. None is in half
    precision if the judge's tolerance could not tell its chain of operations from a shorter one: of
    ["fp32", "bf16"], about a fifth of the problems is in bf16."""
    num_problems: Annotated[int, Field(ge=64)] = 3200
    """Number of generated problems, all different, divided among SFT, GRPO and evaluation. Those
    with the model of a held-out one, for inputs of other shapes, are left out."""
    num_heldout: Positive | Literal["shared"] | None = None
    """Number of problems reserved for evaluation. Absent means 64 of generated problems, and of
    directories and files a fifth, from 1 to 64. "shared", for directories and files, reserves none:
    evaluations are of the problems that are trained on, and labelled."""
    allow_flagged: bool = False
    """Train on problems that "forge problems check" flags, and search them, instead of leaving them
    out; for source = "dir" or "file"."""
    sft_by_level: list[Annotated[int, Field(ge=0)]] = rule(
        f"a list of 1 to {MAX_CHAIN} integers, 0 or more",
        default=[200, 200, 100, 50],
        min_length=1,
        max_length=MAX_CHAIN,
    )
    """Generated problems with an answer in the SFT rows, by chain length: the first number is for
    length 1. GRPO uses the other problems."""

    @property
    def num_reserved(self) -> int:
        """Held-out problems of the generator, and the most of directories and files."""
        return self.num_heldout if isinstance(self.num_heldout, int) else MOST_HELDOUT

    def parts(self) -> list[ProblemSource]:
        """All sources; the keys of a single one count as a list of one."""
        if self.sources is not None:
            return self.sources
        own = {name: getattr(self, name) for name in SourceTable.model_fields}
        return [ProblemSource.model_construct(**own)]

    def key_of(self, index: int) -> str:
        """Prefix of the keys of one of the sources: `problems.` or `problems.sources.1.`."""
        return "problems." if self.sources is None else f"problems.sources.{index}."

    def origin_of(self, index: int) -> str:
        """Name of one of several sources; without one its kind or path, with its number if another
        source has the same."""
        names = [part.label for part in self.parts()]
        return names[index] + (f"-{index}" if names.count(names[index]) > 1 else "")

    @property
    def weights(self) -> dict[str, float]:
        """Weights by origin of the sources that have one."""
        parts = enumerate(self.sources or ())
        return {self.origin_of(i): part.weight for i, part in parts if part.weight is not None}

    @property
    def has_generated(self) -> bool:
        """True if the generator makes some of the problems."""
        return any(part.source == "generated" for part in self.parts())

    @property
    def has_others(self) -> bool:
        """True if some problems come from directories or files."""
        return any(part.source != "generated" for part in self.parts())


class DataSourceTable(Table):
    """Keys of one source of rows: those of `[data]` and of each `[[data.sources]]`."""

    source: Literal["generated", "file"] = "generated"
    """Origin of the rows: the generator's own answers, or a file."""
    path: PathValue | None = None
    """File of conversations (JSON, JSON lines or Parquet), directory of them, or data set on the
    hub; relative to this file or to the working directory; for source = "file". Each row is read by
    its columns: messages (role, content), conversations (from, value: ShareGPT), prompt and
    completion or response, or instruction, input and output (Alpaca). "forge data build" makes
    such a file of reasoning traces, "forge data harvest" of KernelBook and of PyTorch code."""
    format: Literal["messages"] = rule(
        '"messages"; `forge data build X.toml` makes conversations of traces, with input.format, '
        "`forge data harvest rows:PATH` of KernelBook",
        default="messages",
    )
    """Kind of the rows: conversations, the only one."""


class DataSource(DataSourceTable):
    """A `[[data.sources]]`: one of several sources of rows."""

    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Relative frequency of this source's rows in SFT; absent means their number. An epoch has as
    many rows as all sources together, and each source's share of them: rows of a source with a
    large weight occur several times in it, all equally often."""


class DataTable(DataSourceTable):
    """`[data]`: rows for supervised fine-tuning."""

    sources: list[DataSource] | None = rule(
        "one [[data.sources]] or more", default=None, min_length=1
    )
    """Several sources of rows, instead of source and path of one."""
    static_share: Share = 0.0
    """Share of generated first answers with the sizes written as numbers, as torch.compile does,
    instead of read from the tensors. Such an answer is correct, but the model has to multiply to
    write one."""
    repair_share: Share = 0.2
    """Multi-turn rows per single-turn row. Each has one or two wrong answers, the judge's feedback
    on them, and the repaired answer; never more turns than a rollout."""

    def parts(self) -> list[DataSource]:
        """All sources; the keys of a single one count as a list of one."""
        if self.sources is not None:
            return self.sources
        return [DataSource.model_construct(source=self.source, path=self.path)]

    def key_of(self, index: int) -> str:
        """Prefix of the keys of one of the sources: `data.` or `data.sources.1.`."""
        return "data." if self.sources is None else f"data.sources.{index}."

    def origin_of(self, index: int) -> str:
        """Name of a source: `generated`, or its path, shortened to folder and file."""
        path = self.parts()[index].path
        return "generated" if path is None else "/".join(path.parts[-2:])

    @property
    def weights(self) -> dict[int, float]:
        """Weights by index of the sources that have one."""
        parts = enumerate(self.parts())
        return {index: part.weight for index, part in parts if part.weight is not None}

    @property
    def has_generated(self) -> bool:
        """True if the generator makes some of the rows."""
        return any(part.source == "generated" for part in self.parts())

    @property
    def has_files(self) -> bool:
        """True if some rows come from files."""
        return any(part.source == "file" for part in self.parts())


def find_shape_mistakes(shapes: Sequence[Mapping[str, object]]) -> Iterator[tuple[int | None, str]]:
    """Index and message of each shape that cannot be used: one without constants, or one that is
    there twice; None and a message for a wrong number of them. Called for `problems.shapes` and for
    `--shape`."""
    if not 1 <= len(shapes) <= MAX_SHAPES:
        yield None, f"found {len(shapes)} shapes; 1 to {MAX_SHAPES}"
    for index, shape in enumerate(shapes):
        if not shape or {} in shape.values():
            yield index, "found an empty table; at least one constant, such as { N = 1024 }"
        elif shape in shapes[:index]:
            yield index, "found the same shape as before; each shape once"


SERVE_URL = re.compile(r"https?://[^/\s]+(/[^\s?#]*)?|unix:/\S+")


NumGpus = Annotated[int, Field(ge=0)] | Literal["auto"]


class DevicesTable(Table):
    """`[devices]`: the GPUs of each role. Empty means CPU only."""

    gpus: list[str] | Literal["auto"] | None = rule(
        '"auto", or a list of strings such as ["0", "1"]', default=None
    )
    """GPUs of the run, by UUID or index; auto means all visible ones, absent means none."""
    train: NumGpus = 0
    """GPUs of the trainer. auto: chosen by the plan, which prints its reason."""
    serve: NumGpus = 0
    """GPUs of the replicas together. auto: chosen by the plan, which prints its reason."""
    judge: NumGpus = 0
    """GPUs of the judges, one judge per GPU. auto: chosen by the plan, which prints its reason."""
    share: Literal["never", "auto", "always"] = "auto"
    """Sharing of a GPU by several roles. auto: if there are fewer GPUs than roles and their memory
    suffices."""


class ServeTable(Table):
    """`[serve]`: inference engines."""

    engine: Literal["auto", "llama", "vllm", "hf"] = "auto"
    """Inference engine. auto: with GPUs the first installed of vllm, llama (if built for GPUs) and
    hf; without GPUs llama."""
    url: list[str] = Field(default_factory=list)
    """OpenAI-compatible servers that replace the run's own engines, for evaluations and searches:
    http://HOST:PORT[/PATH] or unix:/PATH."""
    api_key_env: str | None = None
    """Environment variable that holds the API key for url."""
    model_name: str | None = None
    """Name of the model at url; absent means the only one there."""
    replicas: NumProcesses = 1
    """Number of engine processes."""
    threads: Positive = 1
    """CPU threads per replica."""
    slots: Annotated[int, Field(ge=1, le=1024)] = 32
    """Sequences that a replica decodes at the same time; llama.cpp has 255 at most."""
    memory_share: Annotated[float, Field(gt=0, le=1)] = 0.85
    """Share of a GPU's memory for weights and KV cache together; vllm only."""
    tensor_parallel: Positive = 1
    """GPUs per replica, for tensor parallelism; vllm only."""
    eager: bool = False
    """Run without CUDA graphs, which starts sooner and decodes more slowly; vllm only."""
    context_tokens: Annotated[int, Field(ge=64)] = 1280
    """Maximum length of a sequence, prompt and completion together."""
    precision: Literal["exact", "fast"] = "exact"
    """Precision of the engine. exact: float32 weights and KV cache, no flash attention; logprobs
    equal those of transformers. fast: bfloat16 weights, float16 KV cache; on CPUs half the time."""
    weights: Literal["files", "ipc"] = "files"
    """Way of new weights from the trainer to engines. ipc: in the memory of its first GPU, which
    engines on this machine read (CUDA IPC), without files; vllm, all weights of a model that is no
    mixture. Those of checkpoints are files. An engine that ends in between ends the attempt."""
    python: PathValue | None = None
    """Python interpreter of the engines; absent means forge's own."""
    env: dict[str, str] = Field(default_factory=dict)
    """Additional environment variables of the engines."""
    start_timeout_s: Annotated[float, Field(gt=0)] | None = None
    """Maximum time from start until /health answers; absent means the engine's own default."""
    request_timeout_s: Annotated[float, Field(gt=0)] = 300.0
    """Maximum time for one completion request."""

    @property
    def num_servers(self) -> int:
        """Replicas, or servers behind URLs."""
        return len(self.url) or self.replicas


SHARED_MEMORY = 0.5
"""Share of a card's memory for an engine that shares it."""


def with_half_a_card(serve: ServeTable) -> ServeTable:
    """`[serve]` for an engine on a card that it shares."""
    share = min(serve.memory_share, SHARED_MEMORY)
    return serve.model_copy(update={"memory_share": share})


class ClusterTable(Table):
    """`[cluster]`: other machines that work for a run, as nodes of a Ray cluster."""

    address: str | None = None
    """Ray cluster whose nodes work for the run: auto, if this machine is one of them, HOST:PORT of
    its head, or ray://HOST:PORT. Absent means this machine alone."""
    judges: Annotated[int, Field(ge=0, le=1024)] = 0
    """Judges on other nodes, which replace those of this machine. Those that find no room start
    when a node has some, or joins. 0: this machine judges."""
    judge_on: Literal["gpu", "cpu"] = "gpu"
    """Resource that each judge takes on its node: a GPU, or a CPU core without a GPU."""
    judge_labels: dict[str, str] = Field(default_factory=dict[str, str])
    """Labels that a node needs to have judges: { role = "judge" }, or
    { "ray.io/accelerator-type" = "H100" }. Values may be "!x" or "in(a,b)", as in Ray."""
    serve: bool = False
    """Run the engines of [serve] on other nodes: serve.replicas of them, each on one node, to which
    weights travel through Ray's object store."""
    serve_on: Literal["gpu", "cpu"] = "gpu"
    """Resource that each engine takes on its node: serve.tensor_parallel GPUs, or serve.threads CPU
    cores."""
    serve_labels: dict[str, str] = Field(default_factory=dict[str, str])
    """Labels that a node needs to have engines, as in judge_labels."""
    share_gpus: bool = False
    """A judge and an engine, or two of either, may have one GPU of a node together: each takes half
    of one from Ray, and an engine at most half of its memory."""
    train_nodes: Annotated[int, Field(ge=0, le=1024)] = 0
    """Nodes that train together with this machine, each with as many ranks as it: devices.train
    GPUs, or a rank on the CPU."""
    train_labels: dict[str, str] = Field(default_factory=dict[str, str])
    """Labels that a node needs to train, as in judge_labels."""


class TinyModel(Table):
    """`[model.tiny]`: sizes of the random Qwen3 model that `init = "tiny"` makes."""

    hidden_size: Annotated[int, Field(ge=32, le=4096)] = 128
    """Width of the residual stream."""
    num_layers: Annotated[int, Field(ge=1, le=64)] = 4
    """Number of transformer blocks."""
    num_heads: Annotated[int, Field(ge=1, le=64)] = 4
    """Number of attention heads."""
    num_kv_heads: Annotated[int, Field(ge=1, le=64)] = 2
    """Number of key-value heads; a divisor of num_heads."""
    head_dim: Annotated[int, Field(ge=8, le=256)] = 64
    """Width of an attention head. The llama engine is twice as fast with 64 as with 32."""
    initializer_range: Annotated[float, Field(gt=0, le=1)] = 0.06
    """Standard deviation of the random weights. With 0.06 a model of this size learns to copy in
    half the steps that 0.02 needs."""
    intermediate_size: Annotated[int, Field(ge=32)] = 384
    """Width of the MLP."""
    vocab_size: Annotated[int, Field(ge=300, le=65536)] = 1024
    """Size of the BPE vocabulary, trained on the run's own data; special tokens included."""
    max_context_tokens: Annotated[int, Field(ge=128)] = 4096
    """Number of positions that the model supports."""
    tie_word_embeddings: bool = True
    """Use the input embedding as the output layer."""


class LoraTable(Table):
    """`[model.lora]`: train an adapter instead of all weights."""

    r: Positive = 16
    """Rank of the adapter."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """Scale of the adapter: the update is alpha / r · B·A."""
    dropout: Share = 0.0
    """Dropout rate of the adapter's input, for modules; parameters are adapted without dropout, and
    a grpo stage has none, as the engine that plays its samples."""
    target_modules: list[str] | Literal["all-linear"] = "all-linear"
    """Names of the modules that get an adapter."""
    target_parameters: list[str] = Field(default_factory=list)
    """Names of parameters that get an adapter although they are not a module's weight, such as the
    fused experts of a mixture: ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]."""


class QuantizeTable(Table):
    """`[model.quantize]`: train an adapter on 4-bit weights (QLoRA), the fused experts of a mixture
    included. Their scales are quantized too; products are in bfloat16."""

    bits: Literal[4] = 4
    """Bits of a stored weight, in NF4."""


CHATML = "chatml"


def names_file(chat_template: object) -> TypeGuard[str]:
    """True for the path of a template, not for "chatml" or the text that a run records."""
    return isinstance(chat_template, str) and chat_template != CHATML and "{" not in chat_template


class ModelTable(Table):
    """`[model]`: the model to train and serve."""

    init: Literal["tiny"] | None = None
    """Make a random model, with the sizes of [model.tiny], instead of loading one."""
    path: Annotated[str, Field(min_length=1)] | None = rule(
        "a directory, RUN or RUN:STEP, a GGUF file or a hub name", default=None
    )
    """Local directory, GGUF file or hub name of the model, or the directory of a run, "runs/x-1" or
    "runs/x-1:40": its newest weights or those of a step, with their adapter merged. Exactly one of
    init and path; neither with serve.url: the server is asked by messages, and forge needs no
    tokenizer."""
    revision: str | None = None
    """Hub revision of the model, or SHA-256 of a GGUF file; recorded with the run."""
    adapter: PathValue | None = None
    """Directory of a PEFT adapter to start from."""
    chat_template: str | None = None
    """Chat template in place of the model's own, for instance of a base model that has none:
    "chatml", a file, or its text. "chatml" ends each message with the model's end of sequence."""
    tiny: TinyModel = TinyModel()
    """Sizes for init = "tiny"."""
    lora: LoraTable | None = None
    """Adapter training; absent means that all weights are trained."""
    quantize: QuantizeTable | None = None
    """Weights in 4 bits; needs [model.lora] and a GPU."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the trainer's weights. auto: float32 if all weights are trained, bfloat16 under an
    adapter. All weights in bfloat16, with their moments, are rounded stochastically by "adamw";
    fsdp2 trains them in float32."""
    trust_remote_code: bool = False
    """Run Python code from the model's directory."""

    @property
    def is_absent(self) -> bool:
        """True if only a server has the model."""
        return self.init is None and self.path is None

    @property
    def run_and_step(self) -> tuple[str, str]:
        """`path` as the directory of a run and a step; the step is empty for the newest weights."""
        return split_step(self.path or "")

    @property
    def is_gguf(self) -> bool:
        """True if `path` is a GGUF file, which may be missing."""
        path = Path(self.path or "").expanduser()
        return path.suffix.lower() == ".gguf" and not path.is_dir()


AMOUNT = r"\d*[1-9]\d*(?:\.\d+)?|\d+\.\d*[1-9]\d*"
BUDGET = rf"^(?:([1-9]\d*)|({AMOUNT})([smh]|[kM]?-tokens))$"
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
TOKENS = {"-tokens": 1, "k-tokens": 1_000, "M-tokens": 1_000_000}


@dataclass(frozen=True, slots=True)
class Budget:
    amount: float
    unit: Literal["answers", "s", "tokens"]
    """Unit of the amount; tokens are generated ones."""

    @classmethod
    def parse(cls, text: str) -> Budget:
        """`64` answers, `20m` or `2M-tokens`. Raises ValueError."""
        found = re.match(BUDGET, text)
        if found is None:
            raise ValueError(f"found {text}; 64 answers, a time as 20m, or 2M-tokens")
        if found[1]:
            return cls(int(found[1]), "answers")
        if found[3] in SECONDS:
            return cls(float(found[2]) * SECONDS[found[3]], "s")
        return cls(float(found[2]) * TOKENS[found[3]], "tokens")


class StageTable(Table):
    """Keys that all kinds of stage have."""

    round: Positive | None = None
    """Number of the round that the stage belongs to, which its name has. Set for the stages of a
    [[round]]."""

    def label(self, index: int) -> str:
        """Its name: `grpo-3`, `grpo-3 (round 2)`."""
        return stage_label(self.model_dump(include={"kind"})["kind"], index, self.round)


class PlayStage(StageTable):
    """Keys that both kinds of stage without training have."""

    num_problems: Positive | None = None
    """Number of problems; absent means all."""


class EvalStage(PlayStage):
    """A `[[stage]]` that measures the current weights on the held-out problems."""

    kind: Literal["eval"]
    """Kind of the stage: evaluation."""
    samples: Positive | None = None
    """Replaces eval.samples in this stage."""
    greedy: bool | None = None
    """Replaces eval.greedy in this stage."""
    max_turns: Annotated[int, Field(ge=1, le=16)] | None = None
    """Replaces eval.max_turns in this stage."""


class SearchStage(PlayStage):
    """A `[[stage]]` that searches for fast kernels with the current weights."""

    kind: Literal["search"]
    """Kind of the stage: search."""
    budget: Annotated[str, rule('"64", "20m" or "2M-tokens"', pattern=BUDGET)]
    """Answers, time or generated tokens that the stage may spend. Problems share them by expected
    gain."""
    strategy: Literal["best-of-n", "refine", "evolve"] = "refine"
    """Earlier answers in a prompt. best-of-n: none. refine: those of a chain, each the parent of
    the next. evolve: a parent drawn from archives by speed and structure."""
    depth: Annotated[int, Field(ge=1, le=16)] = 8
    """Largest number of answers in a chain, and of repairs in a row."""
    patience: Positive = 32
    """Answers in a row without a gain that end the search on a solved problem."""
    roofline_share: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of the roofline that ends the search on a problem."""
    problems: Literal["heldout", "train"] = "heldout"
    """Problems that are searched: those of evaluations, or those of GRPO, whose answers an sft
    stage may train on."""


class TrainStage(StageTable):
    """Keys that both kinds of training stage have."""

    steps: Positive
    """Number of optimizer steps."""
    learning_rate: Annotated[float, Field(gt=0, lt=1)]
    """Peak learning rate of AdamW."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps of linear warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule of the learning rate after warm-up."""
    min_learning_rate: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Final learning rate of the linear and cosine schedules."""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """Optimizer. adamw_8bit stores each moment in one byte; needs bitsandbytes and a GPU."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay of AdamW."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay rate of AdamW's first moment."""
    adam_beta2: Annotated[float, Field(gt=0, lt=1)] = 0.999
    """Decay rate of AdamW's second moment; 0.95 suits short runs from random weights."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Maximum norm of the gradient; a larger one is scaled down."""
    threads: Positive = 1
    """CPU threads of the trainer. Without GPUs, each trains a micro-batch of its own."""
    parallel: Literal["auto", "ddp", "fsdp2"] = "auto"
    """Parallelism over several GPUs. ddp: a whole model on each. fsdp2: a shard on each. auto: ddp
    if the whole model fits."""
    packing: bool | Literal["auto"] = "auto"
    """Lay sequences end to end, each sees itself only, instead of padding them; and compute the
    common beginning of several (a prompt, earlier turns) once. auto: for tested models;
    "forge plan" prints why not."""
    gradient_checkpointing: bool | Positive | None = None
    """Recompute activations instead of keeping them: of all blocks, of none, or of so many. Absent:
    on GPUs of as many as the memory needs, as the plan says."""
    offload: bool = False
    """Keep weights, gradients and optimizer state in host memory, on a GPU one block at a time.
    Needs 2 or more GPUs, which share them (fsdp2)."""
    compile: bool = False
    """Compile the blocks with torch.compile, 10 to 20 s of the first step: fewer, larger kernels. A
    step of a 135M's SFT on an H200 is 40 % shorter."""
    save_every: Positive = 50
    """Steps between checkpoints; the last step always writes one."""
    save: Literal["all", "weights"] = "all"
    """Content of a checkpoint. weights: without the optimizer's moments, two thirds of the bytes; a
    stage that continues from it begins with moments of zero."""
    keep_checkpoints: Positive | Literal["all"] = 2
    """Number of newest checkpoints that are kept; the best one by evaluation is kept, too. all:
    none is removed."""
    restarts: Annotated[int, Field(ge=0)] = 1
    """Maximum restarts of a trainer that died, each from the last checkpoint."""
    step_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """Maximum silence of the trainer; after it, the trainer is stopped as stalled."""


class SftStage(TrainStage):
    """A `[[stage]]` of supervised fine-tuning on the rows of `[data]`, or on the run's own best
    answers."""

    kind: Literal["sft"]
    """Kind of the stage: supervised fine-tuning."""
    source: Literal["data", "search", "rollouts"] = "data"
    """Origin of the rows. data: [data]. search: correct answers of the run's searches so far: the
    best ones, and those that improve on the answer before. rollouts: the same of all its rollouts,
    GRPO's too (rejection sampling). No row is about a held-out problem."""
    best_per_problem: Positive = 4
    """Most rows of a problem that are best answers, and most that are improvements; the fastest are
    taken. For source = "search" and "rollouts", as the next one."""
    min_speedup: Annotated[float, Field(gt=0)] | None = None
    """Minimum speed-up of an answer that becomes a row; absent: none."""
    steps: Annotated[int, Field(ge=0)] = 0
    """Number of optimizer steps. Exactly one of steps and epochs."""
    epochs: Annotated[float, Field(gt=0)] | None = None
    """Number of passes over the rows. Exactly one of steps and epochs."""
    batch_size: Positive = 16
    """Rows per step."""
    micro_batch_tokens: Positive = 16384
    """Maximum tokens in one forward-backward pass. A step has as many passes as its rows need."""
    loss_turns: Literal["last", "all"] = "last"
    """Answers of a conversation that are trained. all: every assistant message, after the prompt of
    its turn; where the template drops earlier thinking, each turn is a row."""
    max_length: Annotated[int, Field(ge=64)] = 1024
    """Maximum length of a row; a longer one is dropped and counted."""


class GrpoStage(TrainStage):
    """A `[[stage]]` of multi-turn GRPO."""

    kind: Literal["grpo"]
    """Kind of the stage: multi-turn GRPO."""
    micro_batch_tokens: Positive = 4096
    """Maximum tokens in one forward-backward pass, with shared ones counted once. A step has as
    many passes as its samples need."""
    publish_every: Positive = 1
    """Steps between publishes of the weights; the last step always publishes."""
    updates_per_batch: Positive = 1
    """Passes over each batch of samples."""
    loss: Literal["dapo", "bnpo", "dr_grpo", "grpo", "cispo"] = "dapo"
    """Averaging of the token losses, by TRL's names: over all tokens of the batch (dapo, bnpo), the
    tokens that it may have (dr_grpo), samples (grpo). cispo: as dapo, of log-probabilities weighted
    by the ratio, which is cut at 1 + clip_high and clips no token."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """Ratio of a token: its own, or the geometric mean over its answer (GSPO)."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Lower clip range: the ratio is clipped below 1 - clip_low."""
    clip_high: Annotated[float, Field(gt=0)] = 0.28
    """Upper clip range: the ratio is clipped above 1 + clip_high."""
    delta: Annotated[float, Field(gt=1)] | None = None
    """Largest ratio that counts where the advantage is negative; above 1 + clip_high."""
    off_policy_mask_threshold: Annotated[float, Field(gt=0)] | None = None
    """Leave out answers with a negative advantage whose mean log-ratio, engine to trainer, is above
    this (DeepSeek-V3.2): those that the policy has left, or that engine and trainer disagree on."""
    logprob_gap_limit: Annotated[float, Field(gt=0)] | None = None
    """Leave out answers whose log-probabilities in engine and trainer are further apart than this,
    in the mean over their tokens, as train/logprob_gap/mean is."""
    beta: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL term; with 0 no reference model is loaded."""


def split_of(stage: EvalStage | SearchStage) -> Split:
    """Split of the problems that a stage plays."""
    is_trained = isinstance(stage, SearchStage) and stage.problems == "train"
    return Split.GRPO if is_trained else Split.HELDOUT


Stage = Annotated[EvalStage | SearchStage | SftStage | GrpoStage, Field(discriminator="kind")]


class RoundTable(Table):
    """A `[[round]]`: stages that are repeated, after those of `[[stage]]`."""

    repeat: Annotated[int, Field(ge=1, le=64)]
    """Number of rounds. Each begins with the weights that the one before ended with."""
    stage: list[Stage] = rule("one [[round.stage]] or more", min_length=1)
    """Stages of a round in order."""


WEBHOOK = r"^https?://[^\s/]+(/\S*)?$"
"""Pattern of a webhook's URL, in the file and in an environment variable."""

DEFAULT_EVENTS = ("done", "failed", "stalled", "best")


class StoreTable(Table):
    """`[store]`: location and content of a run's storage."""

    dir: PathValue = Path("runs")
    """Parent of run directories, relative to the working directory."""
    texts: Literal["plain", "zstd"] = "zstd"
    """Storage of texts: compressed, or plain, which stock sqlite3 can read."""
    keep_tokens: str = rule(
        '"all", "untrained" or "last:N"', pattern=r"^(all|untrained|last:[1-9]\d*)$", default="all"
    )
    """Token ids and logprobs kept in tokens.db. all: every turn up to 20 GB, then as untrained.
    untrained: only what a resume needs. last:N: the last N steps."""
    min_free_bytes: Annotated[int, Field(ge=0)] = 500_000_000
    """Free disk space below which a run saves and stops."""


class LimitsTable(Table):
    """`[limits]`: an attempt that reaches one saves and stops; each resume is a new attempt."""

    hours: Annotated[float, Field(gt=0)] | None = None
    """Maximum wall-clock time of an attempt."""
    tokens: Positive | None = None
    """Maximum number of generated tokens in an attempt."""


class NotifyTable(Table):
    """`[notify]`: messages to people."""

    command: Annotated[str, Field(min_length=1)] | None = None
    """Shell command for each message. Its environment has FORGE_RUN, FORGE_EVENT, FORGE_MESSAGE and
    FORGE_RUN_DIR; its stdin has the same as JSON."""
    webhook: str | None = rule("http(s)://HOST[:PORT][/PATH]", pattern=WEBHOOK, default=None)
    """URL that receives each message as JSON; Slack, Mattermost and Discord show it. It is
    stored with the run; use webhook_env for a secret URL."""
    webhook_env: str | None = rule(
        "the name of a variable", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", default=None
    )
    """Environment variable that holds the URL, instead of webhook."""
    on: list[Literal["done", "failed", "stalled", "stopped", "best"]] = rule(
        'a list of "done", "failed", "stalled", "stopped", "best"',
        default=[*DEFAULT_EVENTS],
        min_length=1,
    )
    """Events that send a message. done, failed, stalled (exit 5), stopped (by a person or by
    [limits]): the end of an attempt. best: an evaluation above all earlier ones of its size, or a
    kernel at least 10% faster than any before."""
    timeout_s: Annotated[float, Field(gt=0, le=300)] = 10.0
    """Maximum time for the command and for the webhook, each. The end of a run waits no longer."""

    @property
    def is_configured(self) -> bool:
        """True if there is a command or a webhook."""
        return any((self.command, self.webhook, self.webhook_env))


class SinksTable(Table):
    """`[sinks]`: other destinations of each step's metrics, which the store has in any case."""

    to: list[Literal["tensorboard", "trackio", "wandb"]] = rule(
        'a list of "tensorboard", "trackio", "wandb"', default=[]
    )
    """Destinations, each fed by a child process that reads the store. tensorboard and wandb write
    below the run's directory, trackio to TRACKIO_DIR."""
    project: Annotated[str, NAME_RULE] = "forge"
    """Project of the runs in trackio and wandb."""
    wandb_mode: Literal["online", "offline"] = "online"
    """online: sends the metrics, and needs WANDB_API_KEY. offline: writes files that "wandb sync"
    can send later."""


class Experiment(Table):
    """A whole experiment file."""

    name: Annotated[str, NAME_RULE]
    """Name of the experiment; its run directories are named <name>-<n>."""
    seed: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    """Seed of all random choices except the judge's inputs."""
    model: ModelTable
    """The model to train and serve."""
    problems: ProblemsTable = ProblemsTable()
    """The problems to solve."""
    data: DataTable = DataTable()
    """Rows for supervised fine-tuning."""
    prompt: PromptTable = PromptTable()
    """Texts that the model is asked with."""
    devices: DevicesTable = DevicesTable()
    """GPUs of each role."""
    serve: ServeTable = ServeTable()
    """Inference engines."""
    judge: JudgeTable = JudgeTable()
    """Compiling, checking and timing candidates."""
    cluster: ClusterTable = ClusterTable()
    """Other machines that judge and generate for the run."""
    reward: RewardTable = RewardTable()
    """Terms of the reward of one verdict."""
    rollout: RolloutTable = RolloutTable()
    """Sampling groups of rollouts for GRPO."""
    eval: EvalTable = EvalTable()
    """Measuring a policy on held-out problems."""
    store: StoreTable = StoreTable()
    """Storage of runs."""
    limits: LimitsTable = LimitsTable()
    """Limits of an attempt."""
    notify: NotifyTable = NotifyTable()
    """Messages to people."""
    sinks: SinksTable = SinksTable()
    """Other destinations of the metrics."""
    stage: list[Stage] = rule("one [[stage]] or more", default=[])
    """Stages in order."""
    round: list[RoundTable] = rule("one [[round]] or more", default=[], exclude=True)
    """Stages that are repeated after these. A run has each round's stages among its own."""

    def unrolled(self) -> tuple[Experiment, list[KeyPath]]:
        """The experiment with the stages of all rounds among its own, and the key of each stage in
        the file."""
        stages = list(self.stage)
        keys: list[KeyPath] = [("stage", index) for index in range(len(stages))]
        rounds = [at for at, table in enumerate(self.round) for _ in range(table.repeat)]
        for number, at in enumerate(rounds, start=1):
            for index, stage in enumerate(self.round[at].stage):
                stages.append(stage.model_copy(update={"round": number}))
                keys.append(("round", at, "stage", index))
        return self.model_copy(update={"stage": stages, "round": []}), keys
