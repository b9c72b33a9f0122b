"""Seconds from new weights on disk to an engine that answers with them.

    python bench/publish.py --out publish.json                  # one GPU, vLLM: under 4 minutes
    python bench/publish.py --engine hf --lora-shape tiny --full-shape tiny

Two engines, one after the other, random Qwen3 weights in memory-backed files: LoRA r=64 on an
8B-shaped model, whole checkpoints of 0.6B (with room for adapters, as a run with both has it). Each
directory is published idle and under load (32 sequences running). A row is good when the answer
after it carries its version, its log probabilities differ from the weights' before it, and equal
those of the same weights published earlier, as far as the engine repeats itself.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import anyio  # noqa: E402

from forge.config.schema import ServeTable  # noqa: E402
from forge.process.devices import inventory  # noqa: E402
from forge.process.sockets import open_socket_dir  # noqa: E402
from forge.records import Prompt  # noqa: E402
from forge.serve.replicas import Replicas, open_replicas  # noqa: E402
from forge.serve.weights import Weights  # noqa: E402

START_TIMEOUT_S = 240.0
LIMITS_S = {"adapter": 2.0, "full": 5.0}
"""Limits that every publish must keep, in seconds."""
PROMPT, TOKENS = list(range(100, 164)), list(range(200, 264))
"""Tokens that are scored after each publish."""
MEMORY_BYTES = 40 << 30
"""Free bytes in /dev/shm that are needed to use it."""
BACKGROUND = 32
"""Sequences that run during a publish under load."""
SAME, OTHER = 0.02, 1e-4
"""Bounds of mean |Δ log-probability|: the maximum for the same weights, or twice the engine's own
difference between two scorings (vLLM with adapters on an 8B shape: 0.04); the minimum for different
weights.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """One row of the table."""

    kind: str
    shape: str
    is_loaded: bool
    """True if sequences were running."""
    publish_s: float
    """Seconds until every replica acknowledged the version."""
    answering_s: float
    """Seconds until the first answer with the new version."""
    other_gap: float
    """Mean |Δ log-probability| to the previous weights."""
    same_gap: float
    """Mean |Δ log-probability| to the first publish of these weights; 0 the first time."""
    noise: float
    """Mean |Δ log-probability| between two scorings in a row: the engine's own variation."""
    is_good: bool


@dataclass(slots=True)
class Seen:
    """Log-probabilities by directory, and the most recent ones."""

    by_path: dict[Path, list[float]] = field(default_factory=dict)
    last: list[float] = field(default_factory=list)

    def gaps(self, path: Path, found: list[float]) -> tuple[float, float]:
        """Differences to the previous weights and to the first publish of these weights."""
        known = self.by_path.setdefault(path, found)
        other, self.last = _gap(self.last, found), found
        return other, _gap(known, found)


def _gap(some: list[float], others: list[float]) -> float:
    return sum(abs(a - b) for a, b in zip(some, others, strict=True)) / len(some)


async def measure(
    table: ServeTable, *, base: Path, pair: tuple[Path, Path], kind: str, shape: str, rank: int
) -> list[Publish]:
    """Publishes two directories alternately: three times idle, three times under load."""
    gpus = [[inventory()[0].uuid]] if inventory() else []
    with open_socket_dir() as sockets, tempfile.TemporaryDirectory() as scratch:
        logs = Path(scratch)
        try:
            async with open_replicas(
                table, weights=Weights(full=base), stop_token_ids=(), socket_dir=sockets,
                log_dir=logs, work_dir=logs, gpus=gpus, max_lora_rank=rank,
            ) as replicas:  # fmt: skip
                seen, rows = Seen(), list[Publish]()
                (seen.last,) = await replicas.probe(PROMPT, TOKENS)
                for version in range(1, 7):
                    path, is_loaded = pair[(version + 1) % 2], version > 3
                    row = await _publish(replicas, path, version, seen, is_loaded)
                    rows.append(Publish(kind=kind, shape=shape, is_loaded=is_loaded, **row))
                    print(rows[-1], file=sys.stderr, flush=True)
                return rows
        except BaseException:
            log = logs / "serve-0.log"
            print(log.read_text()[-6000:] if log.exists() else "no log", file=sys.stderr)
            raise


async def _publish(
    replicas: Replicas, path: Path, version: int, seen: Seen, is_loaded: bool
) -> dict[str, Any]:
    row: dict[str, Any] = {}
    async with anyio.create_task_group() as background:
        if is_loaded:
            for seed in range(BACKGROUND // 8):
                background.start_soon(_generate, replicas, 8, 384, seed)
            await anyio.sleep(0.5)
        start = time.monotonic()
        await replicas.publish(path, version)
        row["publish_s"] = round(time.monotonic() - start, 3)
        answered_by = await _generate(replicas, 1, 1, version)
        row["answering_s"] = round(time.monotonic() - start, 3)
        (found,) = await replicas.probe(PROMPT, TOKENS)
        (again,) = await replicas.probe(PROMPT, TOKENS)
        other, same = seen.gaps(path, found)
        noise = _gap(found, again)
        row |= {"other_gap": round(other, 6), "same_gap": round(same, 6), "noise": round(noise, 6)}
        is_same = same <= max(SAME, 2 * noise)
        row["is_good"] = other >= OTHER and is_same and answered_by == version
        background.cancel_scope.cancel()
    return row


async def _generate(replicas: Replicas, n: int, max_tokens: int, seed: int) -> int:
    found = await replicas.generate(
        Prompt(ids=tuple(PROMPT)), n=n, max_tokens=max_tokens, temperature=1.0, seed=seed
    )
    return found[0].min_version


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A directory in memory if there is room: a run's published weights are there too."""
    memory = Path("/dev/shm")
    has_room = memory.is_dir() and shutil.disk_usage(memory).free >= MEMORY_BYTES
    with tempfile.TemporaryDirectory(dir=memory if has_room else None) as name:
        yield Path(name)


def make(python: str, kind: str, out: Path, *arguments: str) -> Path:
    """Makes random weights in a separate process."""
    script = str(ROOT / "bench/random_models.py")
    subprocess.run([python, script, kind, "--out", str(out), *arguments], check=True)
    return out


def run(args: argparse.Namespace) -> list[Publish]:
    """Measures both engines."""
    table = ServeTable(
        engine=args.engine, slots=64, precision="fast", context_tokens=512, eager=args.eager,
        start_timeout_s=START_TIMEOUT_S,
        python=None if args.python == sys.executable else Path(args.python),
    )  # fmt: skip
    rows: list[Publish] = []
    with scratch_folder() as folder:
        shape, rank = args.lora_shape, str(args.rank)
        base = make(args.python, "full", folder / "base", "--shape", shape)
        adapters = [
            make(args.python, "adapter", folder / f"adapter-{seed}", "--shape", shape,
                 "--rank", rank, "--seed", str(seed))
            for seed in (1, 2)
        ]  # fmt: skip
        rows += anyio.run(
            lambda: measure(
                table, base=base, pair=(adapters[0], adapters[1]), kind="adapter", shape=shape,
                rank=args.rank,
            )
        )  # fmt: skip
    with scratch_folder() as folder:
        shape = args.full_shape
        models = [
            make(args.python, "full", folder / f"model-{seed}", "--shape", shape,
                 "--seed", str(seed))
            for seed in (3, 4)
        ]  # fmt: skip
        rows += anyio.run(
            lambda: measure(
                table, base=models[0], pair=(models[1], models[0]), kind="full", shape=shape,
                rank=args.rank,
            )
        )  # fmt: skip
    return rows


def main() -> int:
    """Exit code: 0 if every publish was good and within its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["vllm", "hf", "llama"], default="vllm")
    parser.add_argument("--python", default=sys.executable, help="interpreter with the engine")
    parser.add_argument("--lora-shape", default="8b")
    parser.add_argument("--full-shape", default="0.6b")
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs: starts sooner")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = run(args)
    print("| weights | shape | sequences running | publish s | answering s | gaps | good |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        running = BACKGROUND if row.is_loaded else 0
        times = f"{row.publish_s:.2f} | {row.answering_s:.2f}"
        gaps = f"{row.other_gap:.4f}, {row.same_gap:.4f}, {row.noise:.4f}"
        print(f"| {row.kind} | {row.shape} | {running} | {times} | {gaps} | {row.is_good} |")
    if args.out:
        args.out.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    late = [row for row in rows if row.answering_s > LIMITS_S[row.kind]]
    return 0 if all(row.is_good for row in rows) and not late else 1


if __name__ == "__main__":
    sys.exit(main())
