"""Compares the evaluator of a judge without a GPU with a card, on the same programs and inputs.

    python -m bench.equality --out rows.json                  # needs a GPU
    python -m bench.equality --out rows.json --keep cases     # also keeps what the card computed
    python -m bench.equality --out rows.json --from cases     # evaluates that again, on any machine

Candidates: the honest corpus (`tests/corpus`), and of every generated family answers in fp32 and in
half precision, and one at the sizes of a GPU for its times alone. The judge captures, compiles,
checks and times each on the card as ever, and notes the outputs of its first input sets; other
processes evaluate the same programs on the same inputs (`equality_model.py`: what may differ).
Beside the measured times stand the estimates that `judge.model_card = "H100"` would give.

Rows are written as they come, so a run that is ended early (SIGTERM, `--limit-s`) leaves those that
are done. Prints each difference and a summary; exit code 1 if anything differs by more than the
model allows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import quantiles
from typing import Any

import zstandard

from bench.equality_cases import Case, evaluated, prepare
from forge.config.schema import ProblemsTable
from forge.data.compositions import Composition, Style, answer
from forge.data.families import FAMILIES
from forge.data.generator import generate_problems
from forge.process.devices import inventory
from forge.records import Problem, Split
from forge.records.verdict import JudgeOptions
from tests.corpus.corpus import load

IN_FLIGHT = 16
JUDGE_CORES = 5
"""Cores that evaluations leave to the judge."""
MAX_KEPT_BYTES = 2 << 20
"""Inputs and outputs of a case above which it is not kept."""
POLL_S = 0.2
START_S = 0.5
Work = tuple[Problem, str, Case]


def corpus() -> Iterator[Work]:
    """The pairs of the honest corpus."""
    for pair in load():
        problem = Problem(
            problem_id=pair.name, source=pair.problem, family="corpus", level=1, split=Split.GRPO
        )
        yield problem, pair.candidate, _case(problem, "corpus")


def families(*, sizes: str, num_fp32: int, num_half: int, num_sets: int) -> Iterator[Work]:
    """Generated problems of every family, each of another variant as far as there are."""
    table = {"families": ["all"], "sizes": sizes, "num_problems": 1024, "num_heldout": 128}
    drawn = generate_problems(ProblemsTable.model_validate({**table, "dtypes": DTYPES}), seed=1)
    for family in FAMILIES:
        for dtypes, num in ((("fp32",), num_fp32), (("fp16", "bf16"), num_half)):
            found: dict[str, Problem] = {}
            for problem in drawn:
                if problem.family == family and problem.precision in dtypes:
                    found.setdefault(Composition.of(problem).variant, problem)
            for problem in list(found.values())[:num]:
                named = replace(problem, problem_id=f"{problem.problem_id}@{sizes}")
                case = _case(named, family, num_sets=num_sets)
                yield named, answer(problem, style=Style.DYNAMIC), case


DTYPES = ["fp32", "fp16", "bf16"]


def _case(problem: Problem, group: str, *, num_sets: int = 4) -> Case:
    return Case(
        name=problem.problem_id,
        group=group,
        source=problem.source,
        precision=problem.precision,
        num_sets=num_sets,
    )


class Rows:
    """Rows so far, on disk after each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.found: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        """Adds a row and writes all."""
        with self._lock:
            self.found.append(row)
            partial = self._path.with_suffix(".partial")
            partial.write_text(json.dumps(self.found, indent=1) + "\n")
            partial.replace(self._path)


def start_pool(num: int) -> ProcessPoolExecutor:
    """Processes that evaluate cases: numpy alone, one core each, no card."""
    changed = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        num, mp_context=context, initializer=prepare, initargs=(os.getpid(),)
    )
    for _ in range(num):  # each starts one, here: they die with the thread that starts them
        pool.submit(time.sleep, START_S)
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    return pool


class Run:
    """Cases on their way from the card to rows."""

    def __init__(
        self, rows: Rows, *, pool: ProcessPoolExecutor, keep: Path | None, limit_s: float
    ) -> None:
        self._rows, self._pool, self._keep = rows, pool, keep
        self.began = time.monotonic()
        self._deadline = self.began + limit_s
        self.stop = threading.Event()
        """Set by SIGTERM."""
        self._is_finished = False
        self.pending: set[Future[Any]] = set()

    def is_over(self) -> bool:
        """True once no further case should begin."""
        return self.stop.is_set() or time.monotonic() > self._deadline

    def evaluate(self, case: Case) -> None:
        """Has a case evaluated. From any thread."""
        if self._keep is not None:
            write(case, self._keep)
        future = self._pool.submit(evaluated, case)
        self.pending.add(future)
        future.add_done_callback(lambda done: self._done(case, done))

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Waits for something, or ends the process when the run is over."""
        while not is_done():
            if self.is_over():
                code = self.finish()
                sys.stdout.flush()
                os._exit(code)  # the judge's children end with us
            time.sleep(POLL_S)

    def finish(self) -> int:
        """Prints the summary and ends the evaluations; the exit code."""
        self._is_finished = True
        for process in multiprocessing.active_children():
            process.kill()
        lines, num_differing = summary(self._rows.found)
        print("\n".join(lines))
        print(f"{time.monotonic() - self.began:.0f} s", flush=True)
        return 1 if num_differing or self.is_over() else 0

    def _done(self, case: Case, future: Future[dict[str, Any]]) -> None:
        if self._is_finished:
            return
        try:
            row = future.result()
        except Exception as error:  # the process that evaluated it, or the pool, has ended
            row = {"name": case.name, "group": case.group, "error": repr(error)[:500]}
        self._rows.add(row)
        self.pending.discard(future)


def write(case: Case, folder: Path) -> None:
    """Keeps a case that is not too large, its inputs and outputs compressed."""
    parts = (one for call in case.calls for one in (*call.inputs, *call.outputs))
    if sum(one.nbytes for one in parts) > MAX_KEPT_BYTES:
        return
    name = case.name.replace("/", "+")
    partial = folder / f"{name}.partial"
    partial.write_bytes(zstandard.compress(pickle.dumps(case), level=3))
    partial.rename(folder / f"{name}.case")


def read(path: Path) -> Case:
    """A case that was kept."""
    found = pickle.loads(zstandard.decompress(path.read_bytes()))
    assert isinstance(found, Case)
    return found


def on_card(works: Sequence[Work], run: Run) -> None:
    """Judges candidates on the first card, `IN_FLIGHT` at a time; each goes on to be evaluated."""
    from bench.equality_card import RecordingTrials
    from tests.evalpool.benches import RUNNER_UID, open_gpu_bench

    waiting, lock = iter(works), threading.Lock()

    def work(trials: RecordingTrials, uid: int | None) -> None:
        while not run.is_over():
            with lock:
                found = next(waiting, None)
            if found is None:
                return
            judge(trials, *found, uid=uid)
            run.evaluate(found[-1])

    with (
        tempfile.TemporaryDirectory() as folder,
        open_gpu_bench(Path(folder) / "root") as opened,
        ThreadPoolExecutor(IN_FLIGHT) as threads,
    ):
        trials = RecordingTrials.over(opened.trials, {case.name: case for *_, case in works})
        uids = [RUNNER_UID and RUNNER_UID + number for number in range(IN_FLIGHT)]
        judged = [threads.submit(work, trials, uid) for uid in uids]
        run.wait(lambda: all(one.done() for one in judged))
        print(f"{time.monotonic() - run.began:.0f} s: the card is done", flush=True)
        run.wait(lambda: not run.pending)


def judge(trials: Any, problem: Problem, code: str, case: Case, *, uid: int | None) -> None:
    """Judges one candidate and notes verdict and times."""
    try:
        verdict = trials.judge(problem, code, uid=uid, options=JudgeOptions())
    except Exception:
        case.failure = traceback.format_exc()[-500:]
        return
    case.status = str(verdict.status)
    if verdict.timing is None:
        case.failure = case.failure or f"{verdict.reason}: {verdict.detail}"[:500]
    else:
        case.candidate_us = verdict.timing.candidate_us
        case.baseline_us = verdict.timing.baseline_us


def summary(rows: Sequence[dict[str, Any]]) -> tuple[list[str], int]:
    """Lines to print, and the number of cases that differ from the card."""
    lines, num_differing, num_compared = list[str](), 0, 0
    for row in sorted(rows, key=lambda one: one["name"]):
        found = differences(row)
        outputs = [one for call in row.get("calls", ()) for one in call.get("outputs", ())]
        num_compared += bool(outputs)
        num_differing += bool(found)
        lines += [f"{row['name']}: {one}" for one in found]
        if not outputs and not found and not row.get("calls"):
            lines.append(f"{row['name']}: not compared: {row.get('status')} {row.get('failure')}")
    lines.append(f"{len(rows)} cases, {num_compared} compared, {num_differing} differ")
    for what in ("candidate_us", "baseline_us", "speedup"):
        ratios = [one for row in rows if (one := _ratio(row, what)) is not None]
        if len(ratios) > 1:
            low, middle, high = quantiles(ratios, method="inclusive")
            lines.append(
                f"{what}: estimated / measured {middle:.3g} ({low:.3g} to {high:.3g}), "
                f"{min(ratios):.3g} to {max(ratios):.3g} in all, n = {len(ratios)}"
            )
    return lines, num_differing


def differences(row: dict[str, Any]) -> list[str]:
    """Differences from the card beyond the model, and calls that were not evaluated."""
    if "error" in row:
        return [row["error"]]
    found: list[str] = []
    for call in row["calls"]:
        if "error" in call:
            found.append(f"{call['variant']}: {call['error']}")
            continue
        found += [f"{call['variant']}: {one}" for one in call["faults"]]
        for place, one in enumerate(call["outputs"]):
            if one["num_beyond"]:
                share = one["num_beyond"] / one["num_elements"]
                worst, first = one["worst"], one["first"]
                found.append(
                    f"{call['variant']}, output {place} ({one['dtype']}): {share:.2%} beyond, "
                    f"{worst:.3g} times what is allowed; first at {first}"
                )
    return found


def _ratio(row: dict[str, Any], what: str) -> float | None:
    """Estimated over measured; of a speed-up, too."""
    estimate, times = row.get("estimate"), (row.get("candidate_us"), row.get("baseline_us"))
    if not estimate or None in times:
        return None
    if what == "speedup":
        both = [_ratio(row, one) for one in ("baseline_us", "candidate_us")]
        return both[0] / both[1] if both[0] and both[1] else None
    return estimate[what] / row[what]


def main() -> int:
    """Writes the rows and prints what they say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--keep", type=Path, help="folder for what the card computed")
    parser.add_argument("--from", dest="folder", type=Path, help="folder that --keep has filled")
    parser.add_argument("--limit-s", type=float, default=150.0)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    given = parser.parse_args()
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    num_cores = len(os.sched_getaffinity(0))
    num = max(2, num_cores if given.folder else num_cores - JUDGE_CORES)
    run = Run(Rows(given.out), pool=start_pool(num), keep=given.keep, limit_s=given.limit_s)
    signal.signal(signal.SIGTERM, lambda *_: run.stop.set())
    if given.folder is not None:
        for path in sorted(given.folder.glob("*.case")):
            case = read(path)
            if given.only in case.name:
                run.evaluate(case)
        run.wait(lambda: not run.pending)
        return run.finish()
    if not inventory():
        parser.error("this machine has no GPU; --from evaluates what one computed")
    works = [
        *corpus(),
        *families(sizes="small", num_fp32=2, num_half=1, num_sets=4),
        *families(sizes="gpu", num_fp32=1, num_half=0, num_sets=1),
    ]
    on_card([one for one in works if given.only in one[-1].name], run)
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
