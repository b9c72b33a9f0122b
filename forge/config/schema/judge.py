"""`[judge]`: compiling, checking and timing candidates."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, cast

from pydantic import Field, model_validator

from forge.config.schema.base import NumProcesses, Table
from forge.records.rules import POLICIES, PolicyName, join_rules

JUDGE_URL = re.compile(r"https?://[^/\s]+|unix:/\S+")


DistributionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?$")]
ProtocolName = Literal["forge", "kernelbench", "drkernel"]
RulesName = Literal[
    "forge", "kernelbench", "drkernel", "forge:hybrid", "kernelbench:own", "drkernel:own"
]
"""A protocol under its own policy; after a colon, under the other one."""


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
    target: Annotated[
        str,
        Field(
            pattern=r"^(cuda:\d{2,3}|hip:gfx[0-9a-f]{3,4})$",
            json_schema_extra={"allowed": "cuda:NUMBER or hip:gfxNAME, such as hip:gfx942"},
        ),
    ] = "cuda:90"
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
    site_packages: list[DistributionName] = Field(
        default_factory=list[str],
        json_schema_extra={"allowed": "names of distributions that pip lists, without a version"},
    )
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
