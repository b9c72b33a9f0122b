"""Prepares SFT pairs, tokenizer and model before the first stage.

    problems ──▶ pairs (broken answers are really judged) ──▶ texts ──▶ init_model ──▶ weights/init

Each product in `data/` is complete or absent, so a resumed run skips the complete ones. A file of
JSON lines has its digest beside it. One that was damaged since is deleted before anyone reads it,
so the run makes it again, as after a deletion.

Rows of a file whose problem is held out are refused or left out, by `problems.duplicates`. They are
compared with held-out problems by the normal form of the code in their messages, so that another
name or size is found.

Problems from a directory are examined before GRPO trains on them: some reward a trivial answer or
cannot be judged. Generated ones are correct by construction, and evaluations use all problems.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import anyio.to_thread

from forge.config.schema import Experiment, GrpoStage, PlayStage, SearchStage, SftStage, split_of
from forge.data.generator import is_generated
from forge.data.pairs.generated import make_pairs
from forge.data.problems import in_split
from forge.data.prompts.prompt_set import PromptSet
from forge.data.sources.normal_form import digests_asked
from forge.data.sources.splitting import clash, digests_of_heldout
from forge.errors import ConfigError
from forge.evalpool.pool import Pool, examine_all
from forge.process.child import ProcessObserver
from forge.records import Judge, Message, Pair, Problem, Split, Verdict
from forge.runner.live.progress import Progress
from forge.runner.plan.placement import turns_played
from forge.store.layout import RunPaths, write_file
from forge.train.handle import run_init_model

DIGEST = ".xxh3"
logger = logging.getLogger(__name__)


async def prepare_pairs(
    experiment: Experiment, problems: Sequence[Problem], *, prompts: PromptSet, paths: RunPaths,
    judge: Judge | None, progress: Progress, say: Callable[[str], None] = logger.info,
) -> list[Pair]:  # fmt: skip
    """The SFT pairs, from the run directory if they exist already. `judge` judges the generator's
    broken answers; `say` gets what was read from files, and what was left out and why, in a thread.
    Raises ConfigError if the problems have no answers to train on, or the file has no rows."""
    file = _pairs_file(paths)
    if file.exists():
        return load_pairs(paths)
    if experiment.data.has_generated and not experiment.problems.has_generated:
        raise ConfigError(
            'problems: none has an answer to train on: an sft stage and model.init = "tiny" need '
            'source = "generated", or data.source = "file"'
        )
    pairs: list[Pair] = []
    parts = enumerate(experiment.data.parts())
    for index, part in sorted(parts, key=lambda each: each[1].source == "generated"):
        # Files first: a mistake in one is found before answers are judged.
        if part.source == "generated":
            assert judge is not None, "generated pairs need a judge"
            found = await make_pairs(
                [problem for problem in problems if problem.split is Split.SFT], experiment.data,
                prompts=prompts, max_turns=turns_played(experiment), seed=experiment.seed,
                judge=_counted(judge, progress),
            )  # fmt: skip
        else:
            read = partial(_read_file, experiment, index, problems, prompts=prompts, say=say)
            found = await anyio.to_thread.run_sync(read)
        pairs += [replace(pair, source=index) for pair in found]
    write_kept(file, "".join(json.dumps(asdict(pair)) + "\n" for pair in pairs))
    return pairs


def _read_file(
    experiment: Experiment, index: int, problems: Sequence[Problem], *, prompts: PromptSet,
    say: Callable[[str], None],
) -> list[Pair]:  # fmt: skip
    from forge.data.pairs.conversations import read_pairs

    path, key = experiment.data.parts()[index].path, f"{experiment.data.key_of(index)}path"
    assert path is not None
    pairs = read_pairs(path, key=key, prompts=prompts, say=say)
    return without_heldout(pairs, problems, experiment, place=f"{key}: {path}", say=say)


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
    pairs: list[Pair] = []
    for line in _pairs_file(paths).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        row["messages"] = tuple(Message(**message) for message in row["messages"])
        pairs.append(Pair(**row))
    return pairs


async def prepare_model(
    experiment: Experiment, pairs: Sequence[Pair], problems: Sequence[Problem], *,
    prompts: PromptSet, paths: RunPaths, log_dir: Path, observer: ProcessObserver,
) -> Path:  # fmt: skip
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
        experiment.model.tiny, texts_path=texts, out_dir=target, log_dir=log_dir,
        seed=experiment.seed, observer=observer,
    )  # fmt: skip
    return target


def _pairs_file(paths: RunPaths) -> Path:
    return data_dir(paths) / "pairs.jsonl"


def data_dir(paths: RunPaths) -> Path:
    """`data/` of a run directory, made if it is not there."""
    folder = paths.root / "data"
    folder.mkdir(exist_ok=True)
    return folder


def write_kept(path: Path, content: str) -> None:
    """Write a file and its digest. The file comes last: without it the digest means nothing."""
    write_file(path.with_name(path.name + DIGEST), _digest(content.encode("utf-8")) + "\n")
    write_file(path, content)


def delete_damaged(paths: RunPaths) -> list[str]:
    """Delete files whose content has changed since they were written; returns their paths in the
    run directory. Reads all of them: call it in a thread."""
    damaged: list[str] = []
    for noted in sorted(data_dir(paths).glob(f"*{DIGEST}")):
        file = noted.with_name(noted.name.removesuffix(DIGEST))
        wanted = noted.read_text(errors="replace").strip()
        if file.exists() and _digest(file.read_bytes()) != wanted:
            file.unlink()
            damaged.append(f"data/{file.name}")
    return damaged


def _digest(content: bytes) -> str:
    import xxhash  # with the first file, not with every command

    return xxhash.xxh3_128_hexdigest(content)


def without_heldout(
    pairs: Sequence[Pair], problems: Sequence[Problem], experiment: Experiment, *, place: str,
    say: Callable[[str], None] = logger.info,
) -> list[Pair]:  # fmt: skip
    """The rows of a file to train on; `place` is its key and path. Takes up to a second per
    thousand rows. Raises ConfigError if a row asks for the code of a held-out problem, or all do.
    """
    table = experiment.problems
    heldout = digests_of_heldout(problems)
    if table.duplicates == "allow" or not heldout or not _evaluates_after_sft(experiment):
        return list(pairs)
    clashes: dict[int, str] = {}
    for index, pair in enumerate(pairs):
        found = digests_asked(pair.messages) & heldout.keys()
        if found:
            clashes[index] = heldout[min(found)]
    if not clashes:
        return list(pairs)
    first, name = next(iter(clashes.items()))
    text = clash(f"row {pairs[first].problem_id}", name, num=len(clashes))
    if table.duplicates == "refuse" or len(clashes) == len(pairs):
        raise ConfigError(f"{place}: {text}")
    row = f"row {pairs[first].problem_id} of {name}"
    say(f"{place}: {len(clashes)} rows left out, as duplicates of held-out problems: {row}")
    return [pair for index, pair in enumerate(pairs) if index not in clashes]


def _evaluates_after_sft(experiment: Experiment) -> bool:
    """True if rows are trained on, and held-out problems are played after that."""
    stages = experiment.stage
    kinds = [isinstance(each, SftStage) and each.source == "data" for each in stages]
    first = kinds.index(True) if True in kinds else None
    return first is not None and any(
        isinstance(stage, PlayStage) or (isinstance(stage, GrpoStage) and experiment.eval.every)
        for stage in stages[first + 1 :]
    )


MAX_NAMES = 8
ALLOW = "problems.allow_flagged = true"


def examined_splits(experiment: Experiment) -> set[Split]:
    """Splits whose problems are examined: those that a search plays, or that are trained on."""
    table = experiment.problems
    if not table.has_others or table.allow_flagged:
        return set()
    searched = {split_of(each) for each in experiment.stage if isinstance(each, SearchStage)}
    trains = any(
        isinstance(stage, GrpoStage) or (isinstance(stage, SftStage) and stage.source != "data")
        for stage in experiment.stage
    )
    return searched | ({Split.GRPO} if trains else set())


async def find_refused(
    problems: Sequence[Problem], splits: set[Split], paths: RunPaths, pool: Pool, progress: Progress
) -> dict[str, str]:
    """Flags, with their facts, of the problems that must not be trained on or searched, by problem
    id. Raises ConfigError if none of a split is left."""
    played = [in_split(problems, split) for split in splits]
    wanted = [each for found in played for each in found if not is_generated(each.problem_id)]
    file = data_dir(paths) / "refused.json"
    if file.exists():
        return json.loads(file.read_text(encoding="utf-8"))
    numbers = itertools.count(1)

    def count() -> None:
        progress.prepare(f"problems {next(numbers)} of {len(wanted)}")

    refused = {
        found.problem_id: "; ".join(
            f"{flag}: {facts}"
            for flag, facts in found.flags.items()
            if flag.is_trivial or flag.is_unusable
        )
        for found in await examine_all(pool, wanted, done=count)
        if not found.is_trainable
    }
    for found in played:
        if found and refused.keys() >= {each.problem_id for each in found}:
            raise ConfigError(f"{refusal(refused, num_problems=len(wanted))}; none is left")
    write_kept(file, json.dumps(refused))
    return refused


def refusal(refused: Mapping[str, str], *, num_problems: int) -> str:
    names = [f"{name} ({flags})" for name, flags in list(refused.items())[:MAX_NAMES]]
    more = len(refused) - MAX_NAMES
    listed = ", ".join(names) + (f" and {more} more" if more > 0 else "")
    return (
        f"problems.path: {len(refused)} of {num_problems} problems are left out: "
        f"{listed}; {ALLOW} takes them"
    )
