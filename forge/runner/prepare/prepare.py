"""Prepare SFT pairs, tokenizer and model before the first stage.

Each product is complete or absent, so a resumed run skips the complete ones.

    problems ──▶ pairs (broken answers are really judged) ──▶ texts ──▶ init_model ──▶ weights/init
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

from forge.data.pairs.generated import make_pairs
from forge.errors import ConfigError
from forge.records import Message, Pair, Problem, Split, Verdict
from forge.runner.plan.needs import turns_played
from forge.runner.prepare.heldout_rows import without_heldout
from forge.runner.prepare.kept_files import data_dir, write_kept
from forge.store.layout import RunPaths, write_file
from forge.train.handle import run_init_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.config.schema import Experiment
    from forge.data.prompts.prompt_set import PromptSet
    from forge.process.child import ProcessObserver
    from forge.records import Judge
    from forge.runner.live.progress import Progress


async def prepare_pairs(
    experiment: Experiment,
    problems: Sequence[Problem],
    *,
    prompts: PromptSet,
    paths: RunPaths,
    judge: Judge | None,
    progress: Progress,
) -> list[Pair]:
    """The SFT pairs, from the run directory if they exist already.

    Args:
        judge: Judges the generator's broken answers; may be None if pairs are read from a file.
        progress: Shows how many answers are judged; hundreds take minutes.

    Raises:
        ConfigError: the problems have no answers to train on, or the file has no rows.
    """
    file = _pairs_file(paths)
    if file.exists():
        return load_pairs(paths)
    if experiment.data.source == "file":  # a judge may run for later stages
        from forge.data.pairs.files import read_pairs

        pairs = await anyio.to_thread.run_sync(
            lambda: without_heldout(
                read_pairs(experiment.data, prompts=prompts), problems, experiment
            )
        )
    elif experiment.problems.has_generated:
        assert judge is not None, "generated pairs need a judge"
        pairs = await make_pairs(
            [problem for problem in problems if problem.split is Split.SFT],
            experiment.data,
            prompts=prompts,
            max_turns=turns_played(experiment),
            seed=experiment.seed,
            judge=_counted(judge, progress),
        )
    else:
        raise ConfigError(
            'problems: none has an answer to train on: an sft stage and model.init = "tiny" need '
            'source = "generated", or data.source = "file"'
        )
    write_kept(file, "".join(json.dumps(asdict(pair)) + "\n" for pair in pairs))
    return pairs


def _counted(judge: Judge, progress: Progress) -> Judge:
    """The judge, with a new label after each verdict."""
    num_asked = num_judged = 0

    async def judge_and_count(problem: Problem, code: str) -> Verdict:
        nonlocal num_asked, num_judged
        num_asked += 1
        verdict = await judge(problem, code)
        num_judged += 1
        progress.prepare(f"broken answers {num_judged} of {num_asked}")
        return verdict

    return judge_and_count


def load_pairs(paths: RunPaths) -> list[Pair]:
    """The pairs that `prepare_pairs` wrote."""
    pairs: list[Pair] = []
    for line in _pairs_file(paths).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        row["messages"] = tuple(Message(**message) for message in row["messages"])
        pairs.append(Pair(**row))
    return pairs


async def prepare_model(
    experiment: Experiment,
    pairs: Sequence[Pair],
    problems: Sequence[Problem],
    *,
    prompts: PromptSet,
    paths: RunPaths,
    log_dir: Path,
    observer: ProcessObserver,
) -> Path:
    """Directory of the weights that a run starts from: the configured one, or a random model made
    here. `locate_model` has already replaced a hub name by a directory."""
    if experiment.model.path is not None:
        return Path(experiment.model.path)
    target = paths.weights / "init"
    if target.exists():
        return target
    texts = data_dir(paths) / "texts.jsonl"
    lines = [m.content for pair in pairs for m in pair.messages]
    lines += [
        message.content
        for problem in problems
        if problem.split is not Split.HELDOUT
        for message in prompts.first_messages(problem)
    ]
    write_file(texts, "".join(json.dumps(line) + "\n" for line in lines))
    await run_init_model(
        experiment.model.tiny,
        texts_path=texts,
        out_dir=target,
        log_dir=log_dir,
        seed=experiment.seed,
        observer=observer,
    )
    return target


def _pairs_file(paths: RunPaths) -> Path:
    return data_dir(paths) / "pairs.jsonl"
