"""The words of the matrix: a cell is a child, a phase, a fault and the expected outcome.

Faults are struck when the phase is reached, by observation and never by time (`moments.py`).
"""

from dataclasses import dataclass
from enum import StrEnum


class Target(StrEnum):
    SUPERVISOR = "supervisor"
    TRAINER = "trainer"
    RANK = "rank"
    """Second rank of a trainer."""
    ENGINE = "engine"
    JUDGE = "judge"
    """Process that serves the judge's socket."""
    ZYGOTE = "zygote"
    RUNNER = "runner"
    """Process of a candidate."""
    STORE = "store"
    """Writer thread, which is struck through its files and its disk."""
    REPORT = "report"
    SINK = "sink"
    NOTIFY = "notify"
    MACHINE = "machine"
    """Clock, /dev/shm and /tmp, which all processes share."""


class Phase(StrEnum):
    STARTING = "starting"
    EVAL = "eval"
    SFT = "sft"
    PLAYING = "playing"
    """A group of a grpo stage is sampled and judged."""
    TRAINING = "training"
    """A batch is on disk, and its step is not acknowledged."""
    PUBLISHING = "publishing"
    """Weights are written, and no replica has acknowledged them."""
    SAVING = "saving"
    """A checkpoint is being written."""
    STOPPING = "stopping"
    """The user has stopped the run, which finishes its step."""
    RESUMING = "resuming"
    """The second attempt starts."""
    STOPPED = "stopped"
    """No process runs, between a SIGKILL and `forge resume`."""
    ENDING = "ending"
    """The work is done; report and notification are made."""


class Fault(StrEnum):
    KILL = "kill"
    STOP = "stop"
    """SIGSTOP, and never SIGCONT."""
    TERM = "term"
    SEGV = "segv"
    SOCKET = "socket-removed"
    DISK_FULL = "disk-full"
    DISK_LOW = "disk-low"
    """Less is free than `[store] min_free_bytes`."""
    READ_ONLY = "read-only"
    SHM_FULL = "shm-full"
    TMP_FULL = "tmp-full"
    DESCRIPTORS = "descriptors"
    MEMORY = "memory"
    CLOCK_FORWARD = "clock-forward"
    CLOCK_BACK = "clock-back"
    DELETED = "deleted"
    TRUNCATED = "truncated"
    EMPTIED = "emptied"
    FLIPPED = "flipped"
    """One byte in the middle is inverted."""
    GARBAGE = "garbage"


SIGNALS = (Fault.KILL, Fault.STOP, Fault.TERM, Fault.SEGV)
DAMAGES = (Fault.DELETED, Fault.TRUNCATED, Fault.EMPTIED, Fault.FLIPPED, Fault.GARBAGE)


class Seen(StrEnum):
    SURVIVED = "survived"
    """Exit 0, and no child was replaced."""
    RESTARTED = "restarted"
    """Exit 0, and a child was replaced."""
    KILLED = "killed"
    """The supervisor ended by the signal; its children with it."""
    USAGE = "exit 2"
    MACHINE = "exit 3"
    DIED = "exit 4"
    STALLED = "exit 5"
    STOPPED = "exit 130"


SERVERS = (Target.ENGINE, Target.JUDGE, Target.ZYGOTE)
"""Targets that an evaluation has."""
CODES = {0, 2, 3, 4, 5, 130}
"""Documented exit codes without 70, a bug of forge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    target: Target
    phase: Phase
    fault: Fault
    expects: frozenset[Seen]
    """Allowed outcomes of the command that was struck."""
    says: str = ""
    """Pattern that stderr of the struck command must contain."""
    never_says: str = ""
    """Pattern that blames the wrong party."""
    file: str = ""
    """Glob of the damaged file inside the run directory; the last match in name order."""
    finishes: bool | None = True
    """False if `forge resume` must refuse and name the file, None if it may."""
    loses_rows: bool = False
    """True if the fault destroys acknowledged rows."""
    loops: bool = False
    """True if candidates run until their deadline, so that the judge is busy, as in every eval."""

    @property
    def name(self) -> str:
        """Identifier of the cell: `trainer-saving-kill`, `store-stopped-deleted:run.db`."""
        name = f"{self.target}-{self.phase}-{self.fault}"
        name += f":{self.file}" if self.file else ""
        return name + ("-busy" if self.loops else "")

    @property
    def stage(self) -> str:
        """Kind of the experiment's stage: the cheapest one with that target and phase."""
        trains = self.target in (Target.TRAINER, Target.RANK)
        if self.phase in (Phase.EVAL, Phase.ENDING):
            return "eval"
        if self.phase is Phase.STARTING:
            return "sft" if trains else "eval"
        if self.phase is Phase.RESUMING and self.target in SERVERS:
            return "eval"
        is_of_any = self.file.startswith(("data/", "STATUS", "lock", "logs", "experiment"))
        return "sft" if self.phase is Phase.SFT or is_of_any else "grpo"
