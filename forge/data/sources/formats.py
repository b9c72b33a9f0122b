"""Rows of public data sets as problems, one function per format of `problems.format`.

    kernelbench         code, level, name, problem_id (ScalingIntelligence/KernelBench)
    kernelbook          python_code, entry_point, uuid (GPUMODE/KernelBook). KernelLLM was trained
                        on this data set, and its rows have these columns
    tritonforge         label, extra_info (level, problem_id, problem_name), instance_id
                        (kernel_bench_triton_*.jsonl)
    cuda-agent          code, ops, data_source `torch#2` (BytedTsinghua-SIA/CUDA-Agent-Ops-6K)
    drkernel            reward_model (ground_truth), extra_info (hkust-nlp/drkernel-rl-data and
                        drkernel-validation-data)
    drkernel-coldstart  original_python_code, entry_point, uuid (hkust-nlp/drkernel-coldstart-8k)

Columns of cuda-agent and drkernel-coldstart are those that public code reads; the data sets could
not be downloaded when this was written. Rows of KernelBench get the ids of its files, in whatever
format: `level1/19_ReLU`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from forge.data.pairs.files import BadRow, code_of, text_of

DEFAULT_ENTRY_POINT = "Model"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProblem:
    """A problem of a row, as far as the row says."""

    problem_id: str
    source: str
    family: str
    level: int = 1
    entry_point: str = DEFAULT_ENTRY_POINT


def kernelbench_row(row: Mapping[str, Any], *, number: int) -> RowProblem:
    """A row of KernelBench's data set. Raises BadRow or Unfit, as all of these functions."""
    source = code_of(row, "code")
    level, problem_id = _whole(row, "level"), _whole(row, "problem_id")
    return _kernelbench(source, level, problem_id, name=text_of(row, "name"))


def kernelbook_row(row: Mapping[str, Any], *, number: int) -> RowProblem:
    """A module of KernelBook, under the id that its SFT row has."""
    return RowProblem(
        problem_id=f"kernelbook/{_named(row, 'uuid', number)}",
        source=code_of(row, "python_code"),
        family="kernelbook",
        entry_point=text_of(row, "entry_point"),
    )


def tritonforge_row(row: Mapping[str, Any], *, number: int) -> RowProblem:
    """A prompt row of TritonForge: its label is the reference."""
    source, info = code_of(row, "label"), _table(row, "extra_info")
    level, problem_id = _whole(info, "level"), _whole(info, "problem_id")
    return _kernelbench(source, level, problem_id, name=str(info.get("problem_name") or ""))


def cuda_agent_row(row: Mapping[str, Any], *, number: int) -> RowProblem:
    """A row of CUDA-Agent-Ops-6K; its level is the number of operators, `torch#2`."""
    found = re.search(r"#(\d+)$", str(row.get("data_source") or ""))
    return RowProblem(
        problem_id=f"cuda-agent/{number}",
        source=code_of(row, "code"),
        family="cuda-agent",
        level=max(1, int(found[1])) if found else 1,
    )


def drkernel_row(row: Mapping[str, Any], *, number: int) -> RowProblem:
    """A row for RL or validation of Dr. Kernel: its ground truth is the reference."""
    source = code_of(_table(row, "reward_model"), "ground_truth")
    info = row.get("extra_info")
    info = info if isinstance(info, Mapping) else {}
    name = next((info[key] for key in ("uuid", "name") if info.get(key) is not None), number)
    level = info.get("level")
    return RowProblem(
        problem_id=f"drkernel/{name}",
        source=source,
        family="drkernel",
        level=max(1, int(str(level))) if str(level).isdecimal() else 1,
        entry_point=_entry_point(info, source),
    )


def coldstart_row(row: Mapping[str, Any], *, number: int) -> RowProblem:
    """The module that a cold-start conversation of Dr. Kernel is about."""
    source = code_of(row, "original_python_code")
    return RowProblem(
        problem_id=f"drkernel-coldstart/{_named(row, 'uuid', number)}",
        source=source,
        family="drkernel-coldstart",
        entry_point=_entry_point(row, source),
    )


FORMATS: dict[str, Callable[..., RowProblem]] = {
    "kernelbench": kernelbench_row,
    "kernelbook": kernelbook_row,
    "tritonforge": tritonforge_row,
    "cuda-agent": cuda_agent_row,
    "drkernel": drkernel_row,
    "drkernel-coldstart": coldstart_row,
}


def _kernelbench(source: str, level: int, problem_id: int, *, name: str) -> RowProblem:
    """A problem of KernelBench under the id of its file; names may begin with the number."""
    rest = re.sub(rf"^0*{problem_id}_|\.py$", "", name)
    stem = f"{problem_id}_{rest}" if rest else str(problem_id)
    folder = f"level{level}"
    return RowProblem(problem_id=f"{folder}/{stem}", source=source, family=folder, level=level)


def _entry_point(row: Mapping[str, Any], source: str) -> str:
    """The named class if the source defines it: some sources rename it to `Model`."""
    name = row.get("entry_point")
    is_defined = isinstance(name, str) and re.search(
        rf"^class[ \t]+{re.escape(name)}\b", source, re.M
    )
    return str(name) if is_defined else DEFAULT_ENTRY_POINT


def _whole(row: Mapping[str, Any], name: str) -> int:
    found = row.get(name)
    if isinstance(found, bool) or not str(found).isdecimal():
        has = "nothing" if found is None else repr(found)[:60]
        raise BadRow(f"{name}: found {has}; a number (columns here: {', '.join(map(str, row))})")
    return int(str(found))


def _table(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = row.get(name)
    if not isinstance(found, Mapping):
        has = "nothing" if found is None else type(found).__name__
        raise BadRow(f"{name}: found {has}; an object (columns here: {', '.join(map(str, row))})")
    return found


def _named(row: Mapping[str, Any], column: str, number: int) -> str:
    found = row.get(column)
    return str(number if found is None else found)
