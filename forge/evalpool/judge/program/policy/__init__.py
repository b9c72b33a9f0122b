"""Rules about the structure of programs: who did the work, and what may outlast a call.

Called by the judge on parsed programs, once the facts of the problem are known; imports no torch.

Two policies. Under `own` the candidate's kernels do the work: beside them, operations of `forward`
may fill, copy, cast and pad, do index bookkeeping up to `INDEX_SHARE` of the necessary work, and
combine partial results up to `COMBINE_SHARE`. Under `hybrid` torch may do heavy work too; the share
of the candidate's kernels is then measured, and one of them at least must be necessary.

Under both, `init` may do any work on parameters, because that is prepacking: layout, casts, padding
and products of weights (`W @ V`) alike. It runs untimed and again for each set of parameters. An
output that no input reaches may not be computed there, nor a table of answers from which values of
an input choose, by an index, a mask or a branch: an embedding may be moved, cast and padded, not
computed further. Weights that are computed with whatever the input is are allowed, and tables that
positions index and no parameter has a part in, as the sines of a rotary embedding.

Structure does not tell a kernel that copies from one that computes; what is left for it to copy is
bounded instead: under `own`, torch can have computed at most a hundredth of the necessary work.
"""

from forge.evalpool.judge.program.policy.facts import (
    Policy,
    ProblemFacts,
    Refusal,
    Rule,
    kinds_of,
)
from forge.evalpool.judge.program.policy.judge import judge_policy, judge_work

__all__ = [
    "Policy",
    "ProblemFacts",
    "Refusal",
    "Rule",
    "judge_policy",
    "judge_work",
    "kinds_of",
]
