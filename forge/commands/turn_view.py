"""`forge show RUN --turn ID`: one turn with its code, verdict and captured program; and a stored
program as text, for `forge judge --explain` too.

The bytes of a program are a candidate's: they are read within the bounds of the format, and the
text must be made printable before it is shown. If this version of forge cannot read a program, the
reason is shown instead.
"""

from __future__ import annotations

import json
from typing import Any

from rich.console import Group as RichGroup
from rich.text import Text

from forge.errors import ConfigError
from forge.store.reader import RunReader
from forge.views.rollouts import parse_address
from forge.views.text import percent, printable


def explain_packed(packed: bytes | None) -> str | None:
    """The text of a program that a verdict or the store holds; None without one. Raises
    ConfigError: this version cannot read it."""
    if packed is None:
        return None
    import zstandard

    from forge.evalpool.judge.program import wire
    from forge.evalpool.judge.program.limits import MAX_BYTES
    from forge.evalpool.judge.program.walk import explain

    try:
        if zstandard.frame_content_size(packed) > MAX_BYTES:
            raise wire.InvalidProgram("larger than a program may be")
        return explain(wire.loads(zstandard.decompress(packed, max_output_size=MAX_BYTES)))
    except (zstandard.ZstdError, wire.InvalidProgram) as error:
        raise ConfigError(f"this version of forge cannot read the program: {error}") from error


COLUMNS = (
    "turn_id, problem_id, stage, step, purpose, status, reason, detail, reward, reward_terms, "
    "speedup, num_launches, torch_share, 1 - torch_share AS own_share, device, phase_s, harness, "
    "code"
)
AGAIN_COLUMNS = "judging, protocol, policy, device, status, reason, detail, speedup"
SHAPE_COLUMNS = "name, status, speedup, speedup_low, candidate_us, baseline_us"
NO_PROGRAM = "no program is stored: the answer failed before one was captured, or it was too large"


def load_turn(reader: RunReader, turn_id: str) -> dict[str, Any]:
    """A turn as JSON: columns of v_turns; `also`, the verdicts of further protocols; `again`, those
    of later passes (`forge judge --run`); `shapes`, results by shape; `calls` of tools; `program`
    as text or null, and `note` where it is null. Raises ConfigError: the id is not one of a turn,
    or the run has no such turn."""
    address = parse_address(turn_id)
    if address is None or address.rollout is None or address.turn is None:
        raise ConfigError(f"--turn {turn_id}: not the id of a turn; write g12.r3.t1")
    key = (address.group_id, address.rollout, address.turn)
    where = "WHERE group_id = ? AND rollout = ? AND turn = ?"
    row = reader.one(f"SELECT {COLUMNS} FROM v_turns {where}", key)
    if row is None:
        raise ConfigError(f"--turn {turn_id}: {reader.paths.name} has no such turn")
    also = f"SELECT protocol, status, reason, detail FROM v_protocols {where} ORDER BY protocol"
    row["reward_terms"] = json.loads(row["reward_terms"])
    row["also"] = reader.rows(also, key)
    again = f"SELECT {AGAIN_COLUMNS} FROM v_judged_again {where} ORDER BY judging"
    row["again"] = reader.rows(again, key)
    calls = f"SELECT tool, arguments, message, result, seconds FROM v_calls {where} ORDER BY call"
    row["calls"] = [
        {**call, "arguments": json.loads(call["arguments"])} for call in reader.rows(calls, key)
    ]
    row["shapes"] = reader.rows(f"SELECT {SHAPE_COLUMNS} FROM v_shapes {where} ORDER BY shape", key)
    packed = reader.value(
        "SELECT body FROM programs WHERE program_id = "
        f"(SELECT program_id FROM turn_programs {where})",
        key,
    )
    try:
        program, note = explain_packed(packed), None if packed else NO_PROGRAM
    except ConfigError as error:
        program, note = None, str(error)
    return {**row, "program": program, "note": note}


def render_turn(turn: dict[str, Any]) -> RichGroup:
    """The turn as text. A model wrote parts of it, so control characters are made visible."""
    from rich.syntax import Syntax

    head = f"{turn['turn_id']}  {turn['problem_id']}: {turn['status']} ({turn['reason']})"
    parts: list[Any] = [Text(printable(head), style="bold")]
    if turn["detail"]:
        parts.append(Text(printable(turn["detail"])))
    if turn["reward_terms"]:
        terms = ", ".join(f"{name} {value:.4g}" for name, value in turn["reward_terms"].items())
        parts.append(Text(printable(f"reward {turn['reward']:.4g}: {terms}")))
    if (own := turn["own_share"]) is not None:
        parts.append(Text(f"own share of the work {percent(own)}"))
    for each in turn["again"]:
        head = f"judged again (pass {each['judging']}, {each['protocol']}, {each['device']})"
        line = f"{head}: {each['status']} ({each['reason']}) {each['detail']}"
        parts.append(Text(printable(line.rstrip())))
    for other in turn["also"]:
        line = f"{other['protocol']}: {other['status']} ({other['reason']}) {other['detail']}"
        parts.append(Text(printable(line.rstrip())))
    for shape in turn["shapes"]:
        times = "" if shape["speedup"] is None else f", speed-up {shape['speedup']:.2f}"
        parts.append(Text(printable(f"{shape['name']}: {shape['status']}{times}")))
    for call in turn["calls"]:
        parts += [Text(""), Text(printable(call["message"] or "")), Text(printable(call["result"]))]
    parts += [Text(""), Syntax(printable(turn["code"] or ""), "python")]
    parts += [Text(""), Text(printable(turn["program"] or turn["note"]))]
    return RichGroup(*parts)
