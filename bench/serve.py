"""Compares tokens per second through forge with those of the bare engine on the same prompts.

    python bench/serve.py --out serve.json                      # one GPU, vLLM: under 4 minutes
    python bench/serve.py --engine hf --shape tiny --sequences 16 --shared 4 --prompt 64 --tokens 16

Random-weight Qwen3, made on the spot. 256 sequences of 256 tokens after a prompt of 512 tokens that
16 share. Arms: vLLM's own `LLM.generate` in a separate process, without and with the sampled
tokens' log probabilities; forge's path, where every answer has them: replica process, HTTP, ids and
log probabilities unpacked, by the compact wire and by JSON. Each arm warms up with one round, then
counts the best later round. `gap` is the mean |Δ log-probability| between sampling and /score for
the same tokens. Each engine is shut down before the next starts.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import anyio  # noqa: E402

from forge.config.schema import ServeTable  # noqa: E402
from forge.process.devices import inventory  # noqa: E402
from forge.process.sockets import open_socket_dir  # noqa: E402
from forge.records import Prompt  # noqa: E402
from forge.serve.replica import ReplicaClient  # noqa: E402
from forge.serve.replicas import Replicas, open_replicas  # noqa: E402
from forge.serve.weights import Weights  # noqa: E402

ARM_TIMEOUT_S = 170.0
TARGET = 0.95
"""Minimum share of the bare engine's tokens per second, both with log-probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests that are sent at once."""

    sequences: int
    shared: int
    """Sequences that share a prompt."""
    prompt: int
    tokens: int
    rounds: int
    vocab: int

    def prompts(self, round_index: int) -> list[list[int]]:
        """New prompts for each round, so that no prefix is cached."""
        rng = random.Random(round_index)
        count = self.sequences // self.shared
        return [[rng.randrange(self.vocab) for _ in range(self.prompt)] for _ in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One row of the table."""

    name: str
    tokens_per_s: float
    """Tokens per second of the best counted round."""
    seconds: list[float]
    """Tokens per second of each counted round."""


def bare_arms(work: Workload, arguments: dict[str, Any]) -> list[Arm]:
    """Measures vLLM alone, in this process."""
    import os

    from forge.serve.vllm.engine import QUIET

    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

    llm = LLM(**arguments)
    arms = []
    for name, logprobs in (("vLLM", None), ("vLLM, log probabilities", 0)):
        params = SamplingParams(
            n=work.shared, temperature=1.0, max_tokens=work.tokens, ignore_eos=True,
            logprobs=logprobs, detokenize=False,
        )  # fmt: skip
        seconds = []
        for index in range(work.rounds + 1):
            prompts = [{"prompt_token_ids": ids} for ids in work.prompts(index)]
            start = time.monotonic()
            outputs = llm.generate(prompts, params, use_tqdm=False)
            seconds.append(time.monotonic() - start)
            assert sum(len(c.token_ids) for o in outputs for c in o.outputs) == _total(work)
            llm.reset_prefix_cache()
        arms.append(_arm(name, work, seconds[1:]))
    llm.llm_engine.engine_core.shutdown()
    return arms


async def forge_arms(work: Workload, table: ServeTable, model: Path) -> tuple[list[Arm], float]:
    """Measures forge's path, and the gap in log-probability."""
    gpus = [[inventory()[0].uuid]] if inventory() else []
    with open_socket_dir() as sockets, tempfile.TemporaryDirectory() as scratch:
        logs = Path(scratch)
        try:
            async with (
                open_replicas(
                    table, weights=Weights(full=model), stop_token_ids=(), socket_dir=sockets,
                    log_dir=logs, work_dir=logs, gpus=gpus,
                ) as replicas,
                ReplicaClient(sockets / "serve-0.sock") as client,
            ):  # fmt: skip
                arms = [
                    _arm("forge, compact", work, await _rounds(work, replicas, offset=100)),
                    _arm("forge, JSON", work, await _json_rounds(work, sockets, offset=200)),
                ]
                return arms, await _gap(work, replicas, client)
        except BaseException:
            log = logs / "serve-0.log"
            print(log.read_text()[-6000:] if log.exists() else "no log", file=sys.stderr)
            raise


async def _rounds(work: Workload, replicas: Replicas, *, offset: int) -> list[float]:
    seconds = []
    for index in range(work.rounds + 1):
        made: list[int] = []

        async def ask(prompt: list[int], seed: int, made: list[int] = made) -> None:
            found = await replicas.generate(
                Prompt(ids=tuple(prompt)),
                n=work.shared,
                max_tokens=work.tokens,
                temperature=1.0,
                seed=seed,
            )
            made += [len(one.logprobs) for one in found]

        start = time.monotonic()
        async with anyio.create_task_group() as group:
            for seed, prompt in enumerate(work.prompts(offset + index)):
                group.start_soon(ask, prompt, seed)
        seconds.append(time.monotonic() - start)
        assert sum(made) == _total(work)
    return seconds[1:]


async def _json_rounds(work: Workload, sockets: Path, *, offset: int) -> list[float]:
    """The same request in OpenAI's JSON form, parsed here."""
    from forge.process.ask import open_client

    seconds = []
    async with open_client(sockets / "serve-0.sock", timeout_s=ARM_TIMEOUT_S) as http:
        for index in range(work.rounds + 1):

            async def ask(prompt: list[int], seed: int) -> None:
                body = {"prompt": prompt, "n": work.shared, "max_tokens": work.tokens, "seed": seed}
                answer = await http.post("/v1/completions", json=body)
                assert len(answer.json()["choices"]) == work.shared

            start = time.monotonic()
            async with anyio.create_task_group() as group:
                for seed, prompt in enumerate(work.prompts(offset + index)):
                    group.start_soon(ask, prompt, seed)
            seconds.append(time.monotonic() - start)
    return seconds[1:]


async def _gap(work: Workload, replicas: Replicas, client: ReplicaClient) -> float:
    prompt = work.prompts(999)[0]
    (one,) = await replicas.generate(
        Prompt(ids=tuple(prompt)), n=1, max_tokens=work.tokens, temperature=1.0, seed=1
    )
    scored = await client.score(prompt, one.token_ids)
    pairs = list(zip(one.logprobs, scored, strict=True))
    return sum(abs(a - b) for a, b in pairs) / len(pairs)


def _total(work: Workload) -> int:
    return work.sequences * work.tokens


def _arm(name: str, work: Workload, seconds: list[float]) -> Arm:
    rounded = [round(value, 4) for value in seconds]
    return Arm(name=name, tokens_per_s=round(_total(work) / min(seconds), 1), seconds=rounded)


def run_bare(python: str, work: Workload, arguments: dict[str, Any]) -> list[Arm]:
    """Runs the bare arms in a child process, whose GPU memory is free when it ends."""
    with tempfile.TemporaryDirectory() as scratch:
        answer, question = Path(scratch) / "answer.json", Path(scratch) / "question.json"
        question.write_text(json.dumps([asdict(work), arguments]))
        argv = [python, __file__, "--bare", str(question), "--out", str(answer)]
        try:
            subprocess.run(argv, check=True, timeout=ARM_TIMEOUT_S, stdout=sys.stderr)
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            print(f"no bare arms: {error}", file=sys.stderr)
            return []
        return [Arm(**arm) for arm in json.loads(answer.read_text())]


def bare_arguments(table: ServeTable, model: Path) -> dict[str, Any]:
    """Settings that our engine passes to vLLM, without those that only forge needs."""
    from forge.serve.vllm.engine import engine_arguments, read_settings

    settings = read_settings(
        {
            "model_dir": str(model), "context_tokens": table.context_tokens, "slots": table.slots,
            "precision": table.precision, "memory_share": table.memory_share, "eager": table.eager,
        }
    )  # fmt: skip
    arguments = engine_arguments(settings)
    return {key: value for key, value in arguments.items() if key != "worker_extension_cls"}


def main() -> int:
    """Exit code: 0 if forge reaches its share of the bare engine, or without a bare engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["vllm", "hf", "llama"], default="vllm")
    parser.add_argument("--python", default=sys.executable, help="interpreter with the engine")
    parser.add_argument("--shape", default="0.6b")
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--shared", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--skip-bare", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--bare", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.bare is not None:
        work, arguments = json.loads(args.bare.read_text())
        arms = bare_arms(Workload(**work), arguments)
        args.out.write_text(json.dumps([asdict(arm) for arm in arms]))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "model"
        maker = [sys.executable, str(ROOT / "bench/step_shape.py"), args.shape, str(model)]
        subprocess.run(maker, check=True)
        return _measure(args, model)


def _measure(args: argparse.Namespace, model: Path) -> int:
    vocab = json.loads((model / "config.json").read_text())["vocab_size"]
    work = Workload(
        sequences=args.sequences, shared=args.shared, prompt=args.prompt, tokens=args.tokens,
        rounds=args.rounds, vocab=vocab,
    )  # fmt: skip
    table = ServeTable(
        engine=args.engine, slots=min(args.sequences, 256), precision="fast", eager=args.eager,
        context_tokens=max(64, args.prompt + args.tokens), start_timeout_s=ARM_TIMEOUT_S,
        python=None if args.python == sys.executable else Path(args.python),
    )  # fmt: skip
    arms: list[Arm] = []
    if args.engine == "vllm" and not args.skip_bare:
        arms += run_bare(args.python, work, bare_arguments(table, model))
    ours, gap = anyio.run(forge_arms, work, table, model)
    arms += ours
    by_name = {arm.name: arm.tokens_per_s for arm in arms}
    bare = by_name.get("vLLM, log probabilities")
    share = None if bare is None else round(by_name["forge, compact"] / bare, 3)
    print("| arm | tokens/s | s of each round |\n|---|---|---|")
    for arm in arms:
        print(f"| {arm.name} | {arm.tokens_per_s:,.0f} | {arm.seconds} |")
    print(f"share of the bare engine, both with log probabilities: {share} (wanted {TARGET})")
    print(f"mean gap between sampled and scored log probabilities: {gap:.2e}")
    if args.out:
        found = {"work": asdict(work), "arms": [asdict(arm) for arm in arms]}
        args.out.write_text(json.dumps({**found, "share": share, "gap": gap}, indent=1))
    return 0 if share is None or share >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
