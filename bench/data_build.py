"""Time and memory of `forge data build` on synthetic rows with KernelBook's columns.

    python bench/data_build.py --rows 18000 --dir /tmp/rows
    python bench/data_build.py --rows 18000 --dir /tmp/rows --again   # and compare the bytes

Rows are modules of random layers, and answers in the form that Inductor writes, 1 to 20 kB of code,
log-uniform. A twentieth repeats an earlier row with other names. Lengths are counted by a BPE
tokenizer with 32,000 tokens, trained on the first rows. Prints seconds, CPU seconds (on a shared
machine the only figure that says something), the highest sum of resident memory of all processes,
and the load of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
from pyarrow import parquet
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).parents[1]
LAYERS = (
    "nn.Linear({a}, {b})", "nn.Conv2d({a}, {b}, 3, padding=1)", "nn.LayerNorm({a})",
    "nn.BatchNorm2d({a})", "nn.Embedding({a}, {b})", "nn.Dropout(0.{a})", "nn.GRUCell({a}, {b})",
)  # fmt: skip
CALLS = (
    "F.relu({x})", "F.softmax({x}, dim=-1)", "torch.sigmoid({x})", "torch.tanh({x} * {n})",
    "{x} + {y}", "{x} * {y} - {n}", "{x}.mean(dim=1, keepdim=True)", "torch.clamp({x}, min={n})",
    "torch.cat([{x}, {y}], dim=1)", "{x}.view({x}.size(0), -1)", "F.gelu({x})", "torch.exp(-{x})",
    "F.layer_norm({x}, {x}.shape[-1:])", "torch.matmul({x}, {y}.transpose(-1, -2))",
)  # fmt: skip
STEPS = (
    "tmp{i} = tmp{j} + tmp{k}", "tmp{i} = tmp{j} * tmp{k}", "tmp{i} = tl.sigmoid(tmp{j})",
    "tmp{i} = tl.full([1], {n}, tl.int32)", "tmp{i} = triton_helpers.maximum(tmp{j}, tmp{k})",
    "tmp{i} = tl.where(tmp{j}, tmp{k}, {n}.0)", "tmp{i} = libdevice.tanh(tmp{j})",
    "tmp{i} = tl_math.exp(tmp{j})", "tmp{i} = tmp{j} / {n}.0", "tmp{i} = tmp{j} > tmp{k}",
)  # fmt: skip


def make_module(rng: random.Random, name: str) -> str:
    """A module of random layers and calls."""
    num = rng.randint(1, 6)
    layers = [
        f"        self.layer{i} = {layer.format(a=rng.randint(2, 64), b=rng.randint(2, 64))}"
        for i, layer in enumerate(rng.choices(LAYERS, k=num))
    ]
    body = [f"        v{i} = self.layer{i}({'x' if i == 0 else f'v{i - 1}'})" for i in range(num)]
    for i in range(num, num + rng.randint(1, 10)):
        x, y = f"v{rng.randrange(i)}", f"v{rng.randrange(i)}"
        body.append(f"        v{i} = {rng.choice(CALLS).format(x=x, y=y, n=rng.randint(1, 9))}")
    lines = [
        "import torch", "import torch.nn as nn", "import torch.nn.functional as F", "", "",
        f"class {name}(nn.Module):", f'    """Module {name}."""', "", "    def __init__(self):",
        "        super().__init__()", *layers, "", "    def forward(self, x):", *body,
        f"        return {body[-1].split()[0]}", "", "", "def get_inputs():",
        f"    return [torch.rand([{', '.join(str(rng.choice((2, 4, 8, 16))) for _ in range(4))}])]",
        "", "", "def get_init_inputs():", "    return [[], {}]", "",
    ]  # fmt: skip
    return "\n".join(lines)


def make_kernel(rng: random.Random, name: str) -> str:
    """A kernel as Inductor writes it, of about 1 kB."""
    size = rng.choice((64, 256, 1024, 4096))
    heuristics = (
        f"@triton_heuristics.pointwise(size_hints=[{size}], filename=__file__, triton_meta={{"
        "'signature': {0: '*fp32', 1: '*fp32', 2: 'i32'}, 'device': 0}, inductor_meta={})"
    )
    lines = [
        heuristics, "@triton.jit", f"def {name}(in_ptr0, out_ptr0, xnumel, XBLOCK: tl.constexpr):",
        f"    xnumel = {size}", "    xoffset = tl.program_id(0) * XBLOCK",
        "    xindex = xoffset + tl.arange(0, XBLOCK)[:]", "    xmask = xindex < xnumel",
        f"    x0 = xindex % {rng.choice((4, 16, 64))}",
        "    tmp0 = tl.load(in_ptr0 + x0, xmask, eviction_policy='evict_last')",
    ]  # fmt: skip
    count = rng.randint(5, 25)
    for i in range(1, count):
        step = rng.choice(STEPS).format(
            i=i, j=rng.randrange(i), k=rng.randrange(i), n=rng.randint(0, 9)
        )
        lines.append(f"    {step}")
    return "\n".join([*lines, f"    tl.store(out_ptr0 + x0, tmp{count - 1}, xmask)", "", ""])


def make_answer(rng: random.Random, name: str, *, size: int) -> str:
    """An answer of about `size` bytes."""
    head = (
        "import torch\nfrom torch._inductor.select_algorithm import extern_kernels\nimport triton\n"
        "import triton.language as tl\nfrom torch._inductor.runtime.triton_heuristics import grid\n"
        "from torch._inductor.runtime import triton_helpers, triton_heuristics\n"
        "from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math\n"
        "from torch._C import _cuda_getCurrentRawStream as get_raw_stream\n"
        "import torch.nn as nn\n\n"
    )
    parts = [head]
    kernels: list[str] = []
    while sum(map(len, parts)) < size - 900 or not kernels:
        kernels.append(f"triton_poi_fused_{rng.choice(('add', 'mul', 'relu'))}_{len(kernels)}")
        parts.append(make_kernel(rng, kernels[-1]))
    call = ["def call(args):", "    primals_1, = args", "    args.clear()"]
    for i, kernel in enumerate(kernels):
        call += [
            f"    buf{i} = empty_strided_cuda((4, 4, 4, 4), (64, 16, 4, 1), torch.float32)",
            f"    {kernel}.run(primals_1, buf{i}, 256, grid=grid(256), stream=get_raw_stream(0))",
        ]
    parts.append("\n".join([*call, f"    return buf{len(kernels) - 1},", "", ""]))
    parts.append(
        f"class {name}New(nn.Module):\n    def forward(self, input_0):\n"
        "        return call([input_0])[0]\n"
    )
    return "\n".join(parts)


def make_rows(num: int, *, seed: int = 0) -> Iterator[dict[str, str | int]]:
    """Rows with KernelBook's columns."""
    rng = random.Random(seed)
    old: list[dict[str, str | int]] = []
    for number in range(num):
        name = f"Module{rng.randrange(1 << 30):x}"
        if old and rng.random() < 0.05:
            base = rng.choice(old)
            source, code = (
                str(base[column]).replace(str(base["entry_point"]), name)
                for column in ("python_code", "triton_code")
            )
        else:
            size = int(1000 * 20 ** rng.random())
            source, code = make_module(rng, name), make_answer(rng, name, size=size)
        row = {"entry_point": name, "python_code": source, "triton_code": code, "uuid": number}
        if len(old) < 500:
            old.append(row)
        yield row


def write_rows(path: Path, num: int) -> int:
    """Writes a Parquet file; returns the bytes of code."""
    size = 0
    rows: list[dict[str, str | int]] = []
    writer: parquet.ParquetWriter | None = None
    for row in make_rows(num):
        rows.append(row)
        size += len(str(row["python_code"])) + len(str(row["triton_code"]))
        if len(rows) == 1000 or row["uuid"] == num - 1:
            table = pa.Table.from_pylist(rows)
            writer = writer or parquet.ParquetWriter(path, table.schema)
            writer.write_table(table)
            rows.clear()
    assert writer is not None
    writer.close()
    return size


def train_tokenizer(folder: Path, *, vocab_size: int = 32_000) -> None:
    """A byte-level BPE tokenizer with forge's chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=["<|im_start|>", "<|im_end|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    sources = [path.read_text() for path in sorted((ROOT / "forge").rglob("*.py"))]
    texts = [f"{r['python_code']}\n{r['triton_code']}" for r in make_rows(300)]
    tokenizer.train_from_iterator([*sources, *texts], trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    shutil.copy(ROOT / "forge/data/chat_template.jinja", folder / "chat_template.jinja")


def settings(folder: Path, out: Path, *, is_rewritten: bool) -> str:
    """The settings file."""
    return (
        f'[input]\npath = "{folder}/rows.parquet"\nformat = "kernelbook"\n'
        f"rewrite = {str(is_rewritten).lower()}\n\n"
        f'[tokenizer]\npath = "{folder}/tokenizer"\n\n'
        "[split]\nheldout_share = 0.02\n\n"
        f'[output]\ndir = "{out}"\n'
    )


def run(folder: Path, out: Path, *, is_rewritten: bool) -> tuple[float, float, int]:
    """Seconds, CPU seconds of all processes, and the highest sum of resident bytes of a build."""
    shutil.rmtree(out, ignore_errors=True)
    file = folder / "build.toml"
    file.write_text(settings(folder, out, is_rewritten=is_rewritten))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    before, began = used.ru_utime + used.ru_stime, time.monotonic()
    child = subprocess.Popen(
        [sys.executable, "-m", "forge", "data", "build", str(file)],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    most = 0
    while child.poll() is None:
        most = max(most, resident(child.pid))
        time.sleep(0.1)
    if child.returncode:
        sys.exit(child.returncode)
    seconds = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, used.ru_utime + used.ru_stime - before, most


def resident(pid: int) -> int:
    """Resident bytes of a process and its children; shared pages count for each."""
    total = 0
    try:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            total += process.memory_info().rss
    except psutil.NoSuchProcess:
        return total
    return total


def main() -> None:
    """Makes rows, builds, and prints the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=18_000)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--again", action="store_true", help="build twice and compare the bytes")
    parser.add_argument("--rewrite", action="store_true", help="with the step rewrite, too")
    given = parser.parse_args()
    folder: Path = given.dir.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    size = write_rows(folder / "rows.parquet", given.rows)
    if not (folder / "tokenizer").is_dir():
        train_tokenizer(folder / "tokenizer")
    print(f"{given.rows} rows, {size / 1e6:.0f} MB of code; load {os.getloadavg()[0]:.1f}")
    outs = [folder / f"out-{number}" for number in range(2 if given.again else 1)]
    for out in outs:
        seconds, cpu_seconds, most = run(folder, out, is_rewritten=given.rewrite)
        print(
            f"built in {seconds:.1f} s, {cpu_seconds:.1f} CPU seconds, at most "
            f"{most / 2**30:.2f} GiB in all processes; load {os.getloadavg()[0]:.1f}"
        )
    if given.again:
        names = sorted(path.name for path in outs[0].iterdir())
        same = [(outs[0] / n).read_bytes() == (outs[1] / n).read_bytes() for n in names]
        print("the same bytes" if all(same) else f"different: {names} {same}")


if __name__ == "__main__":
    main()
