"""Rows of KernelBook: a PyTorch module and the Triton code that torch.compile made from it.

Columns used: `entry_point`, the name of the module; `python_code`, which defines it with
`get_inputs` and `get_init_inputs`; `triton_code`, which defines `<entry_point>New`; `uuid`. The
prompt is the same as in a run, so the judge accepts what is trained.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from forge.data.pairs.rows import Unfit, text_of
from forge.data.prompts import first_messages
from forge.records import Message, Pair, Problem, Split

if TYPE_CHECKING:
    from collections.abc import Mapping


def kernelbook_pair(row: Mapping[str, Any], *, number: int) -> Pair:
    """One turn: the module, and its answer without thinking, which the data set lacks.

    Raises:
        BadRow: a column is missing.
        Unfit: the answer does not define `<entry_point>New`, which no judge accepts.
    """
    entry_point, code = text_of(row, "entry_point"), text_of(row, "triton_code")
    if not re.search(rf"^class[ \t]+{re.escape(entry_point)}New\b", code, flags=re.MULTILINE):
        raise Unfit("without the class that a judge calls")
    name = row.get("uuid")
    problem = Problem(
        problem_id=f"kernelbook/{number if name is None else name}",
        source=text_of(row, "python_code"),
        family="kernelbook",
        level=1,
        split=Split.SFT,
        entry_point=entry_point,
    )
    answer = Message(role="assistant", content=f"```python\n{code.strip()}\n```")
    return Pair(
        problem_id=problem.problem_id, messages=(*first_messages(problem), answer), num_turns=1
    )
