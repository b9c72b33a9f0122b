"""Measures plain TRL for comparison: its GRPOTrainer generates inside the trainer, with forge's
judge as its reward function.

    python bench/trl_baseline.py experiments/quickstart.toml --steps 2       # a CPU, random weights
    python bench/trl_baseline.py X.toml --model runs/x-1/weights/sft-000400  # a GPU, < 4 minutes
    python bench/trl_baseline.py X.toml --shape 0.6b --no-judge --completions 128 --tokens 256
    python bench/trl_baseline.py X.toml --model DIR --colocate               # TRL's own vLLM mode

Problems, prompts, judge, reward, group size, answer length, clipping, scaling of advantages and
gradient checkpointing are the experiment's; answers have one turn, as TRL's trainer requires;
prompt tokens are counted as TRL tokenised them. It uses every visible GPU
(CUDA_VISIBLE_DEVICES=0 shows it one). Everything runs in sequence: generation, judging, forward and
backward. The first step is left out of the means. Without `--model` the weights are random and
their answers are no kernels: then only generation and training are measured. `bench/step.py`
measures the same step by forge; its docstring has both commands.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
from trainers_workload import SHAPES, made_up_reward, make_model

from forge.config.load import load_experiment
from forge.config.schema import Experiment, GrpoStage
from forge.data.chat import ChatTemplate
from forge.data.problems import in_split, load_problems
from forge.evalpool.pool import Pool, open_pool
from forge.process.devices import inventory
from forge.process.sockets import open_socket_dir
from forge.records import Problem, Split
from forge.rollout.prompter import TemplatePrompter
from forge.rollout.rewards.formulas import reward_terms
from forge.runner.prepare.prompt_facts import prompts_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Seconds of one step by phase."""

    step_s: float
    generate_s: float
    judge_s: float
    train_s: float
    tokens: int
    """Tokens generated per step, all of which are trained."""
    prompt_tokens: float
    """Mean prompt tokens of the answers."""
    reward: float
    """Mean reward."""
    correct: float
    """Share of correct answers."""


class Judging:
    """TRL's reward function: asks the pool, whose loop runs in the main thread."""

    __name__ = "judge"  # TRL's metrics ask for it

    def __init__(
        self, pool: Pool | None, problems: Sequence[Problem], experiment: Experiment, prompter: Any
    ) -> None:
        self._pool, self._problems, self._experiment = pool, problems, experiment
        self._prompter = prompter
        self.seconds = self.reward = self.correct = 0.0
        self.tokens = 0

    def __call__(
        self, *, completion_ids: list[list[int]], index: list[int], **kwargs: Any
    ) -> list[float]:
        """Rewards of a generation batch; an answer that could not be judged gets 0."""
        began = time.monotonic()
        self.tokens = sum(map(len, completion_ids))
        scored = (
            anyio.from_thread.run(self._judge_all, completion_ids, index)
            if self._pool is not None
            else [(made_up_reward(ids), False) for ids in completion_ids]
        )
        rewards = [reward for reward, _ in scored]
        self.reward = statistics.fmean(rewards)
        self.correct = statistics.fmean(is_correct for _, is_correct in scored)
        self.seconds = time.monotonic() - began
        return rewards

    async def _judge_all(
        self, answers: list[list[int]], index: list[int]
    ) -> list[tuple[float, bool]]:
        found: list[tuple[float, bool]] = [(0.0, False)] * len(answers)

        async def judge(place: int) -> None:
            assert self._pool is not None
            problem = self._problems[index[place]]
            text = self._prompter.decode(answers[place])
            code, _ = self._prompter.extract(problem, text)
            if not code:
                return
            verdict = await self._pool.judge(problem, code)
            terms = reward_terms(verdict, self._experiment.reward) or {}
            found[place] = sum(terms.values()), verdict.is_correct

        async with anyio.create_task_group() as tasks:
            for place in range(len(answers)):
                tasks.start_soon(judge, place)
        return found


def train(given: argparse.Namespace, experiment: Experiment, model_dir: Path,
          judging: Judging, prompts: list[str]) -> list[Step]:  # fmt: skip
    """Trains in a thread, since TRL blocks and its reward function waits for the pool."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl.trainer.grpo_trainer import GRPOTrainer

    steps: list[Step] = []
    clock = {"step": 0.0, "scored": 0.0, "prompt_tokens": 0.0}

    class Timed(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            began = time.monotonic()
            found = super()._generate_and_score_completions(inputs)
            clock["scored"] = time.monotonic() - began
            clock["prompt_tokens"] = found["prompt_mask"].sum(1).float().mean().item()
            return found

    class Tick(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            clock["step"] = clock["step"] or time.monotonic()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            now = time.monotonic()
            passed, clock["step"] = now - clock["step"], now
            steps.append(
                Step(
                    step_s=passed,
                    generate_s=clock["scored"] - judging.seconds,
                    judge_s=judging.seconds,
                    train_s=passed - clock["scored"],
                    tokens=judging.tokens,
                    prompt_tokens=clock["prompt_tokens"],
                    reward=judging.reward,
                    correct=judging.correct,
                )
            )

    trainer = Timed(
        model=str(model_dir),
        args=arguments(given, experiment),
        reward_funcs=judging,  # pyright: ignore[reportArgumentType] - TRL names functions only
        train_dataset=Dataset.from_dict({"prompt": prompts, "index": list(range(len(prompts)))}),
        processing_class=AutoTokenizer.from_pretrained(model_dir),
        peft_config=lora(given.lora),
        callbacks=[Tick()],
    )
    clock["step"] = time.monotonic()
    trainer.train()
    return steps


def arguments(given: argparse.Namespace, experiment: Experiment) -> Any:
    """TRL's arguments from the experiment's tables."""
    import torch
    from trl.trainer.grpo_config import GRPOConfig

    on_gpu = torch.cuda.is_available()
    rollout = experiment.rollout
    stage = next((s for s in experiment.stage if isinstance(s, GrpoStage)), None)
    num_samples = given.completions or rollout.groups_per_step * rollout.group_size
    rows = min(given.rows, num_samples)
    checkpointing = stage.gradient_checkpointing if stage else None
    keys: dict[str, Any] = {"use_vllm": True, "vllm_mode": "colocate"} if given.colocate else {}
    if given.colocate:
        keys["vllm_gpu_memory_utilization"] = 0.3
    return GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="trl-"),
        max_steps=given.steps,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=num_samples // rows,
        num_generations=rollout.group_size,
        max_completion_length=given.tokens or rollout.max_completion_tokens,
        temperature=rollout.temperature,
        scale_rewards=rollout.scale,
        loss_type=stage.loss if stage else "dapo",
        epsilon=stage.clip_low if stage else 0.2,
        epsilon_high=stage.clip_high if stage else 0.28,
        learning_rate=stage.learning_rate if stage else 1e-6,
        beta=0.0,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        gradient_checkpointing=on_gpu if checkpointing is None else bool(checkpointing),
        model_init_kwargs={"dtype": "bfloat16" if on_gpu and given.lora else "float32"},
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=experiment.seed,
        **keys,
    )


def lora(rank: int) -> Any:
    if not rank:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules="all-linear", exclude_modules=["lm_head"],
        task_type="CAUSAL_LM",
    )  # fmt: skip


async def measure(given: argparse.Namespace, folder: Path) -> list[Step]:
    experiment = load_experiment(given.experiment, overrides=given.set)
    model_dir = given.model or make_model(given.shape, folder / "model")
    chat = ChatTemplate.load(model_dir)
    completion = given.tokens or experiment.rollout.max_completion_tokens
    prompter = TemplatePrompter(
        prompts=prompts_for(experiment.prompt, experiment.judge, inventory()[:1]),
        chat=chat,
        context_tokens=experiment.serve.context_tokens,
        max_completion_tokens=completion,
    )
    problems = in_split(load_problems(experiment.problems, seed=experiment.seed), Split.GRPO)
    asked = [(p, prompt) for p in problems if (prompt := prompter.prompt(p, ()))]
    if not asked:
        raise SystemExit("no prompt fits serve.context_tokens with this tokenizer")
    chosen = [problem for problem, _ in asked]
    prompts = [prompt.text for _, prompt in asked]
    run: Callable[[Judging], Any] = partial(_in_thread, given, experiment, model_dir, prompts)
    if given.no_judge:
        return await run(Judging(None, chosen, experiment, prompter))
    with open_socket_dir() as sockets:
        async with open_pool(
            experiment.judge, socket_dir=sockets, log_dir=folder, gpus=inventory()[:1]
        ) as pool:
            return await run(Judging(pool, chosen, experiment, prompter))


async def _in_thread(
    given: argparse.Namespace,
    experiment: Experiment,
    model_dir: Path,
    prompts: list[str],
    judging: Judging,
) -> list[Step]:
    work = partial(train, given, experiment, model_dir, judging, prompts)
    return await anyio.to_thread.run_sync(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--set", action="append", default=[], help="as forge run's")
    parser.add_argument("--model", type=Path, help="a directory; absent: random weights")
    parser.add_argument("--shape", choices=SHAPES, default="tiny", help="of random weights")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--completions", type=int, default=0, help="a step; 0: the experiment's")
    parser.add_argument("--tokens", type=int, default=0, help="an answer; 0: the experiment's")
    parser.add_argument("--rows", type=int, default=16, help="of a micro-batch")
    parser.add_argument("--lora", type=int, default=0, help="rank; 0 trains all weights")
    parser.add_argument("--no-judge", action="store_true", help="a made-up reward")
    parser.add_argument("--colocate", action="store_true", help="generate by vLLM in the trainer")
    parser.add_argument("--out", type=Path, help="write the steps as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        steps = anyio.run(measure, given, Path(folder))
    show(steps)
    if given.out:
        given.out.write_text(json.dumps([asdict(step) for step in steps], indent=1) + "\n")


def show(steps: list[Step]) -> None:
    later = steps[1:] or steps

    def mean(name: str) -> float:
        return statistics.fmean(getattr(step, name) for step in later)

    print(
        f"{'s/step':>8} {'generate':>9} {'judge':>8} {'train':>8} {'tok/s':>8} {'prompt':>7} "
        f"{'reward':>7}"
    )
    print(
        f"{mean('step_s'):8.3f} {mean('generate_s'):9.3f} {mean('judge_s'):8.3f} "
        f"{mean('train_s'):8.3f} {mean('tokens') / mean('step_s'):8.0f} "
        f"{mean('prompt_tokens'):7.0f} {mean('reward'):7.3f}"
    )
    print(f"{len(later)} steps, {mean('correct'):.0%} of the answers correct", file=sys.stderr)


if __name__ == "__main__":
    main()
