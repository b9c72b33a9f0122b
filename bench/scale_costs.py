"""Measures what a turn costs the supervisor's process, in CPU seconds.

    python bench/scale_costs.py [--tokens 256 1500] [--turns 1500] [--out costs.json]

The real loop, engine client, judge pool, prompts and store, against a stub that answers at once in
a process of its own (`scale_stub.py`). Printed for each length of answer: CPU of the whole, and of
each part alone; the highest rate of the store's writer; CPU and rate of sending weights by
`forge serve --weights`. CPU seconds depend little on other load; rates do.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from scale_stub import make_answer, make_verdict
from store_turns import Player
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import forge.data.chat
from forge.config.schema import JudgeTable, PromptTable, RewardTable, StoreTable
from forge.data.chat import ChatTemplate
from forge.data.prompts.conversation import Exchange
from forge.data.prompts.loading import make_prompts
from forge.evalpool.pool import Pool
from forge.evalpool.seat import Seat
from forge.evalpool.seating import Seating
from forge.process.ask import open_client
from forge.process.busy import BusyClock
from forge.process.limits import collect_less_often
from forge.process.sockets import open_socket_dir
from forge.records import Problem, Purpose, Split
from forge.rollout.batches import Batch, BatchPlan
from forge.rollout.pacing import PublishedSteps
from forge.rollout.play import Rules
from forge.rollout.ports import Ports
from forge.rollout.producer import produce_batches
from forge.rollout.prompter import TemplatePrompter
from forge.rollout.sampling.sampler import make_sampler
from forge.serve.client import ReplicaClient
from forge.serve.served import SampleRequest, Served
from forge.store import open_writer

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from forge.records import Completion

SOURCE = Path(forge.data.chat.__file__).read_text()
REFERENCE = """import torch

class Model(torch.nn.Module):
    def forward(self, x, y):
        return torch.relu(x @ y).sum(dim=1)

def get_inputs():
    return [torch.randn(1024, 1024), torch.randn(1024, 1024)]

def get_init_inputs():
    return []
"""
ANSWER = """The product is tiled, and each program reduces its rows.

```python
import torch
import triton
import triton.language as tl

# kernel NUMBER
@triton.jit
def kernel(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.maximum(tl.load(x + i, mask=i < n), 0.0), mask=i < n)

class ModelNew(torch.nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), BLOCK=256)
        return out
```
"""
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
IN_FLIGHT = 32
NUM_PROBLEMS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """CPU seconds of one turn."""

    whole: float
    """Loop, engine client, pool, prompts and store together, measured in one run of the loop."""
    generate: float
    verdict: float
    prompter: float
    store: float


def make_chat(folder: Path) -> ChatTemplate:
    """A tokenizer of our own sources, with forge's template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator([SOURCE, REFERENCE, ANSWER.replace("NUMBER", "")], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": SPECIAL[2]}))
    template = Path(forge.data.chat.__file__).with_name("chat_template.jinja")
    (folder / "chat_template.jinja").write_text(template.read_text())
    return ChatTemplate.load(folder)


def answer_ids(chat: ChatTemplate, num_tokens: int) -> dict[str, Any]:
    """Token ids of an answer of about that length, whose thinking fills it up."""
    before, after = ANSWER.split("NUMBER")
    rest = len(chat.encode_plain(before)) + len(chat.encode_plain(after)) + 8
    filler = chat.encode_plain(SOURCE)
    thinking = list(itertools.islice(itertools.cycle(filler), max(num_tokens - rest, 0)))
    thought = [*chat.encode_plain("<think>\n"), *thinking, *chat.encode_plain("\n</think>\n")]
    return {
        "before": [*thought, *chat.encode_plain(before)],
        "digits": [chat.encode_plain(digit)[0] for digit in "0123456789"],
        "after": chat.encode_plain(after),
        "stop": chat.stop_token_ids[0],
    }


class StubServer:
    """A server of `Served` over a real client."""

    name, load, generated_tokens, num_deaths, is_up = "serve-0", 0, 0, 0, True

    def __init__(self, path: Path) -> None:
        self.client = ReplicaClient(path)
        self.busy = BusyClock()

    async def complete(self, request: SampleRequest) -> list[Completion]:
        with self.busy.running():
            return await self.client.complete(
                request.prompt.ids, n=request.n, max_tokens=request.max_tokens,
                temperature=request.temperature, seed=request.seed,
                stop_token_ids=request.stop_token_ids,
            )  # fmt: skip


class Nowhere:
    """A sink that stores nothing."""

    async def put(self, *records: Any) -> None: ...


@dataclass(slots=True, kw_only=True)
class Bench:
    """Everything that a turn passes through."""

    chat: ChatTemplate
    prompter: TemplatePrompter
    served: Served
    pool: Pool
    problems: Sequence[Problem]
    ids: dict[str, Any]


@asynccontextmanager
async def opened(folder: Path, num_tokens: int) -> AsyncGenerator[Bench]:
    """The stub, and what asks it."""
    chat = make_chat(folder)
    ids = answer_ids(chat, num_tokens)
    (folder / "ids.json").write_text(json.dumps(ids))
    with open_socket_dir() as sockets:
        path = sockets / "stub.sock"
        argv = [sys.executable, str(Path(__file__).with_name("scale_stub.py")), str(path)]
        stub = subprocess.Popen([*argv, str(folder / "ids.json")])  # noqa: ASYNC220
        try:
            while not path.exists():  # noqa: ASYNC110
                await anyio.sleep(0.05)
            async with open_client(path, timeout_s=60) as judge_client:
                seat = Seat(name="judge-0", capacity=16)
                seating = Seating([seat])
                seating.judge_opened(seat, judge_client, is_trusted=True)
                server: Any = StubServer(path)
                table = PromptTable(preset="standard")
                yield Bench(
                    chat=chat,
                    ids=ids,
                    prompter=TemplatePrompter(
                        prompts=make_prompts(table), chat=chat, context_tokens=40_000,
                        max_completion_tokens=2 * num_tokens,
                    ),
                    served=Served(
                        [server], stop_token_ids=chat.stop_token_ids, slots=256, wait_s=60
                    ),
                    pool=Pool(JudgeTable(), seating),
                    problems=[_problem(number) for number in range(NUM_PROBLEMS)],
                )  # fmt: skip
                await server.client.aclose()
        finally:
            stub.terminate()
            stub.wait()


def _problem(number: int) -> Problem:
    source = f"{REFERENCE}\n# {number}\n"
    return Problem(
        problem_id=f"p{number}", source=source, family="matmul", level=1, split=Split.GRPO
    )


async def run_loop(bench: Bench, sink: Any, *, num_turns: int) -> float:
    """CPU seconds of one turn, of about so many that the whole loop plays."""
    groups, size = 8, 8
    plan = BatchPlan(
        stage=0, first_step=1, last_step=max(num_turns // (groups * size * 2), 1),
        groups_per_step=groups, max_replacements=0, max_staleness=10**6, scale="group",
        train_truncated=True, publish_timeout_s=60,
    )  # fmt: skip
    rules = Rules(
        group_size=size, max_turns=2, gamma=0.4, credit="turn", temperature=1.0,
        max_completion_tokens=4096, reward=RewardTable(), seed=0,
    )  # fmt: skip
    ports = Ports(
        generate=bench.served.generate, judge=bench.pool.judge, sink=sink,
        prompter=bench.prompter, is_apart=True,
    )  # fmt: skip
    published, num = PublishedSteps(), 0
    send, receive = anyio.create_memory_object_stream[Batch](0)
    began = time.process_time()
    async with anyio.create_task_group() as tasks:

        async def train() -> None:
            nonlocal num
            async with receive:
                async for batch in receive:
                    num += sum(len(t.turns) for g in batch.groups for t in g.trajectories)
                    published.advance(batch.step)

        tasks.start_soon(train)
        await produce_batches(
            plan, sampler=make_sampler("uniform", bench.problems, seed=0), rules=rules, ports=ports,
            published=published, group_ids=itertools.count(1), sample_ids=itertools.count(1),
            out=send, step_of=lambda version: version,
        )  # fmt: skip
    return (time.process_time() - began) / num


async def each(call: Callable[[], Any], *, num: int) -> float:
    """CPU seconds of one call, IN_FLIGHT at once."""
    began = time.process_time()

    async def some() -> None:
        for _ in range(num // IN_FLIGHT):
            await call()

    async with anyio.create_task_group() as tasks:
        for _ in range(IN_FLIGHT):
            tasks.start_soon(some)
    return (time.process_time() - began) / (num // IN_FLIGHT * IN_FLIGHT)


async def measure(num_tokens: int, *, num_turns: int) -> Parts:
    """The costs of a turn with answers of that length."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with opened(folder, num_tokens) as bench:
            await run_loop(bench, Nowhere(), num_turns=128)  # warm
            run = folder / "run"
            run.mkdir()
            (run / "experiment.toml").write_text('name = "x"\n')
            async with open_writer(run, StoreTable(texts="zstd")) as writer:
                await writer.put(*bench.problems)
                whole = await run_loop(bench, writer, num_turns=num_turns)
            return Parts(
                whole=whole,
                generate=await _generate_cost(bench, num_turns),
                verdict=await _verdict_cost(bench, num_turns),
                prompter=_prompter_cost(bench, num_turns // 4),
                store=await _store_cost(folder, num_tokens, num_turns),
            )


async def _generate_cost(bench: Bench, num: int) -> float:
    prompt = bench.prompter.prompt(bench.problems[0], ())
    assert prompt is not None

    async def ask() -> None:
        await bench.served.generate(prompt, n=1, max_tokens=4096, temperature=1.0, seed=0)

    return await each(ask, num=num)


async def _verdict_cost(bench: Bench, num: int) -> float:
    numbers = itertools.count()

    async def ask() -> None:
        code = ANSWER.replace("NUMBER", f"v{next(numbers)}")
        await bench.pool.judge(bench.problems[next(numbers) % NUM_PROBLEMS], code, program=True)

    return await each(ask, num=num)


def _prompter_cost(bench: Bench, num: int) -> float:
    """Half of the turns are second ones, whose prompts have the first answer; no answer and no
    verdict comes twice."""
    import random

    draw: random.Random = random.Random(0)
    prompter, problem = bench.prompter, bench.problems[0]
    played = [(make_answer(bench.ids, 20_000 + i), make_verdict(draw)) for i in range(num)]
    began = time.process_time()
    for index, (answer, verdict) in enumerate(played):
        text = prompter.decode(answer.token_ids)
        prompter.extract(problem, text)
        prompter.feedback(verdict)
        if index % 2:
            prompter.prompt(problem, [Exchange(completion_text=text, verdict=verdict)])
        elif index % 16 == 0:
            prompter.prompt(problem, ())
    return (time.process_time() - began) / num


async def _store_cost(folder: Path, num_tokens: int, num: int) -> float:
    """The rows of turns, trajectories and groups; samples and their uses are in `store_s`."""
    player = Player(text_bytes=5 * num_tokens, num_tokens=num_tokens, program_bytes=1500)
    groups = [
        player.group(n, purpose=Purpose.TRAIN, stage=0, step=1, version=0, skill=0.3)
        for n in range(num // 16)
    ]
    run = folder / "alone"
    run.mkdir()
    (run / "experiment.toml").write_text('name = "x"\n')
    async with open_writer(run, StoreTable(texts="zstd")) as writer:
        await writer.flush()
        began = time.process_time()
        for group in groups:
            for trajectory in group.trajectories:
                for turn in trajectory.turns:
                    await writer.put(turn)
                await writer.put(trajectory)
            await writer.put(group)
        await writer.flush()
        return (time.process_time() - began) / player.num_turns


def main() -> None:
    """The command line above."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 1500])
    parser.add_argument("--turns", type=int, default=1500)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    collect_less_often()  # as a supervisor does
    found: dict[int, dict[str, float]] = {}
    for num_tokens in options.tokens:
        parts = anyio.run(lambda n=num_tokens: measure(n, num_turns=options.turns))
        found[num_tokens] = {name: getattr(parts, name) for name in Parts.__slots__}
        shown = ", ".join(f"{name} {1e3 * value:.2f}" for name, value in found[num_tokens].items())
        print(f"{num_tokens} tokens, CPU ms a turn: {shown}")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
