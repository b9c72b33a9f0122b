"""Rows, settings and a tokenizer for the tests of data builds."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from forge.config.schema.build import DataBuild
from forge.data.build.near import signature, similarity
from forge.data.build.steps import Example, parse, to_example
from tests.architectures import byte_tokenizer
from tests.prompting import PROMPTS

ROOT = Path(__file__).parents[3]

MODULE = '''\
import torch

class {name}(torch.nn.Module):
    """Adds {number}."""

    def forward(self, x):
        return torch.{op}(x) + {number}

def get_inputs():
    return [torch.rand([4, 4])]

def get_init_inputs():
    return [[], {{}}]
'''
ANSWER = """\
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, {value} + {number}, mask=i < n)

class {name}New(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(1,)](x, y, x.numel(), BLOCK=16)
        return y
"""
OPS = {
    "relu": "tl.maximum(value, 0.0)",
    "sigmoid": "tl.sigmoid(value.to(tl.float32))",
    "exp": "tl.exp(value)",
    "sin": "tl.sin(value)",
    "sqrt": "tl.sqrt(tl.abs(value))",
    "square": "value * value",
}
"""A torch function, and its value in a kernel."""


def trinity_row(op: str = "relu", *, number: int = 1, **changes: Any) -> dict[str, Any]:
    """A row of traces: a module that applies `op` and adds a number, and its kernel."""
    name = changes.pop("name", "Model")
    row = {
        "sample_key": f"{op}-{number}",
        "pytorch_code": MODULE.format(name=name, op=op, number=number),
        "triton_code": ANSWER.format(name="Model", value=OPS[op], number=number),
        "result": {"correctness": True},
    }
    return row | changes


def likeness(one: str, other: str) -> float:
    """Similarity of two codes by their signatures."""
    signatures = [signature(code, parse(code)) for code in (one, other)]
    return float(similarity(signatures[0], signatures[1][None])[0])


def make_rows(num: int) -> list[dict[str, Any]]:
    """Rows that differ from each other in all operations, which only their names have."""
    rows: list[dict[str, Any]] = []
    for number in range(num):
        row = trinity_row("relu", number=number)
        calls = [f"    value = tl.step_{number}_{place}(value)\n" for place in range(6)]
        row["pytorch_code"] = row["pytorch_code"].replace("torch.relu", f"torch.chain_{number}")
        row["triton_code"] = row["triton_code"].replace(
            "    tl.store", f"{''.join(calls)}    tl.store"
        )
        rows.append(row)
    return rows


def build_of(folder: Path = Path("/nowhere"), **tables: dict[str, Any]) -> DataBuild:
    """Settings without lengths, with tables replaced."""
    values: dict[str, Any] = {
        "input": {"path": str(folder / "rows.jsonl"), "format": "trinity"},
        "output": {"dir": str(folder / "out")},
        "filters": {"length": False},
    }
    for name, table in tables.items():
        values[name] = {**values.get(name, {}), **table}
    return DataBuild.model_validate(values)


def example(row: dict[str, Any], format: str) -> Example:
    """A row of a format as an example, with the prompts of the tests."""
    return to_example(row, number=1, build=build_of(input={"format": format}), prompts=PROMPTS)


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    """Writes rows, one JSON value a line; a text is written as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def write_rows(path: Path, rows: Any) -> Path:
    """Writes rows in the form that the suffix names."""
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        write_jsonl(path, rows)
    else:
        path.write_text(json.dumps(rows))
    return path


def write_tokenizer(folder: Path) -> Path:
    """A model directory whose tokens are bytes."""
    folder.mkdir()
    byte_tokenizer("<|im_start|>", "<|im_end|>").save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    shutil.copy(ROOT / "forge/data/chat_template.jinja", folder / "chat_template.jinja")
    return folder
