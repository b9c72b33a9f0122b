"""Opens the judge of a machine without GPUs: kernels are evaluated from their TTIR.

capture ─▶ structure ─▶ (binary, if asked for) ─▶ evaluator
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from forge.config.schema import JudgeTable
from forge.evalpool.capacity import draw_timeout_s, reference_timeout_s
from forge.evalpool.cards import CARDS
from forge.evalpool.judge.channel.shm import shared_memory
from forge.evalpool.judge.children.kept import KeptChildren
from forge.evalpool.judge.children.spawner import Spawner
from forge.evalpool.judge.compiler.binary import SHARED_BYTES, warp_size_of
from forge.evalpool.judge.compiler.cache import Cache
from forge.evalpool.judge.compiler.compile import Compiler
from forge.evalpool.judge.numbers.protocols import NUM_TRIALS
from forge.evalpool.judge.trial.captures import PLAIN_ROLE, Captures, Facts
from forge.evalpool.judge.trial.cpu_device import CpuDevice, CpuMemory, Evaluator
from forge.evalpool.judge.trial.draws import HostDraw
from forge.evalpool.judge.trial.judgement import Judgement, Results
from forge.evalpool.judge.trial.programs import Programs
from forge.evalpool.judge.trial.references import (
    MAX_SHOWN_BYTES,
    HostReferences,
    Oracles,
    ReferenceFailed,
    Sketches,
)
from forge.evalpool.judge.trial.trial import Candidate, Decided, Finding, Stamp
from forge.evalpool.judge.trial.trials import Trials
from forge.evalpool.judge.ttir.decisions import ANY, PARAMETER
from forge.records.reason import Status

H100 = 90
MAX_SAID = 5
"""Decisions that a right verdict names."""


def assumed_target(name: str) -> dict[str, Any]:
    """The GPU `cuda:90` or `hip:gfx942` as captures and compilations take it, with the facts of the
    best known card of its architecture. An H100's are the defaults of a capture."""
    backend, _, code = name.partition(":")
    arch = int(code) if backend == "cuda" else code
    shared = {"shared_memory_per_block_optin": SHARED_BYTES.get(name)}
    properties: dict[str, Any] = {"name": name, **shared}
    found = next(((short, one) for short, one in CARDS.items() if one.arch == arch), None)
    if found is not None:
        short, card = found
        properties |= {
            "name": short if backend == "cuda" else f"AMD Instinct {short}",
            "multi_processor_count": card.num_sms,
            "total_memory": card.memory_gb << 30,
            "L2_cache_size": card.l2_mb << 20,
            "clock_rate": round(card.ghz * 1e6),
        }
    known = {key: value for key, value in properties.items() if value is not None}
    return {
        "backend": backend,
        "arch": arch,
        "warp_size": warp_size_of(name),
        "properties": {} if arch == H100 else known,
    }


def open_cpu_trials(
    table: JudgeTable,
    *,
    spawner: Spawner,
    stamp: Stamp,
    cache: Cache | None = None,
) -> CpuTrials:
    """The judge of a machine without GPUs. `cache`: compiled kernels; by default in memory."""
    draws = partial(
        HostReferences,
        spawner,
        timeout_s=reference_timeout_s(table),
        draw_timeout_s=draw_timeout_s(table),
        max_bytes=table.memory_bytes,
    )
    captures = Captures(
        spawner,
        table=table,
        target=assumed_target(table.target),
        kept=KeptChildren(spawner, role=PLAIN_ROLE),
    )
    return CpuTrials(
        table=table,
        spawner=spawner,
        references=draws(num_sets=table.num_inputs),
        given=draws(num_sets=NUM_TRIALS, is_varied=False),
        shown=draws(
            num_sets=1,
            is_varied=False,
            max_problems=0,
            max_bytes=min(table.memory_bytes, MAX_SHOWN_BYTES),
        ),
        sketches=Sketches(Oracles(spawner, num_kept=1), max_bytes=table.memory_bytes),
        captures=captures,
        facts=Facts(captures),
        compiler=Compiler(spawner, cache=cache or Cache(None)),
        evaluators=KeptChildren(spawner, role="evaluator"),
        stamp=stamp,
    )


@dataclass(kw_only=True, eq=False)
class CpuTrials(Trials):
    """Judges without a GPU."""

    evaluators: KeptChildren

    def close(self) -> None:
        self._end_idle()
        self.sketches.close()
        self.evaluators.close()
        self.captures.close()
        self.compiler.close()

    def _judged(
        self, candidate: Candidate, kept: HostDraw, programs: Callable[[], Programs]
    ) -> Finding:
        found = programs()
        finding = self._evaluated(candidate, kept, found)
        is_own = candidate.protocol is None and not candidate.options.outputs
        if not (found.open and is_own and finding.status is Status.CORRECT):
            return finding
        return self._aimed(candidate, found, finding)

    def _aimed(self, candidate: Candidate, programs: Programs, finding: Finding) -> Finding:
        """The finding of a right candidate some of whose decisions took one side alone, after
        further sets that are aimed at the other. Raises Decided."""
        names = {name for one in programs.open for name in one.memory}
        aims: dict[str, Any] = {
            "constants": sorted({number for one in programs.open for number in one.constants}),
            "inputs": None if ANY in names else sorted(map(int, filter(str.isdecimal, names))),
            "zeroed": [],
        }
        zeroed = [name.removeprefix(PARAMETER) for name in names if name.startswith(PARAMETER)]
        zero = {"constants": [], "inputs": [], "zeroed": sorted(zeroed)}
        left = {one[:2] for one in programs.open}
        for terms in (aims, zero) if zeroed else (aims,):
            try:
                with candidate.phases.timed("reference"):
                    kept = self.references.hold(candidate.problem, aims=terms)
                try:
                    kept.draw.is_aimed = True
                    aimed = programs.on(kept.draw, problem=programs.problem)
                    self._evaluated(candidate, kept, aimed)
                    left &= {one[:2] for one in aimed.open}
                finally:
                    self.references.let_go(kept)
            except ReferenceFailed:
                pass  # as it is constructed a Model may be ill-conditioned
            except Decided as decided:
                if decided.finding.status in (Status.WRONG, Status.RUNTIME_ERROR):
                    raise  # else it is late, or the machine is
        said = [f"line {line}: {text}" for line, text in sorted(left)]
        if len(said) > MAX_SAID:
            said[MAX_SAID:] = [f"and {len(said) - MAX_SAID} more decisions took one side alone"]
        return replace(finding, detail="\n".join([*filter(None, [finding.detail]), *said]))

    def _evaluated(self, candidate: Candidate, kept: HostDraw, found: Programs) -> Finding:
        """The finding on one draw, and what is open behind it. Raises Decided."""
        draw = kept.draw
        has_tf32 = not (self.table.tf32 and draw.has_products)  # products lose what it lacks
        with shared_memory(kept.memory_bytes) as (fd, memory):
            evaluator = Evaluator(
                programs=found,
                evaluators=self.evaluators,
                memory=CpuMemory(kept, memory),
                memory_fd=fd,
                has_tf32=has_tf32,
            )
            results = Results(content=kept, protocol=candidate.protocol)
            device = CpuDevice(programs=found, results=results, evaluator=evaluator)
            try:
                return Judgement(programs=found, device=device).finding()
            finally:
                found.open = evaluator.open
                evaluator.close()
