"""The matrix: every cell with its expected outcome, as data.

Read an expectation as a promise to the user: a dead child is replaced or named, a killed run is
resumed, a damaged file is gone back from or named.
"""

from collections.abc import Iterator

from tests.chaos.cells import Cell, Fault, Phase, Seen, Target

T, P, F = Target, Phase, Fault
SURVIVED, RESTARTED, KILLED = Seen.SURVIVED, Seen.RESTARTED, Seen.KILLED
MACHINE, DIED, STALLED, STOPPED = Seen.MACHINE, Seen.DIED, Seen.STALLED, Seen.STOPPED
LIVES = (SURVIVED, RESTARTED)
SANDBOX = "CAP_SYS_ADMIN|no sandbox"
"""Words that blame the machine's sandbox."""
SMALL = {"engine-eval-kill"}
"""The cell of `make test`: an evaluation, which needs no trainer. Other tests there kill the
supervisor, a judge and a trainer."""
LONG = {"supervisor-eval-kill", "zygote-eval-kill", "machine-eval-clock-back"}
"""Further cells of `make test-all`."""


def cell(
    target: Target, phase: Phase, fault: Fault, *expects: Seen, says: str = "",
    never_says: str = "", file: str = "", finishes: bool | None = True, loses_rows: bool = False,
    loops: bool = False,
) -> Cell:  # fmt: skip
    return Cell(
        target=target, phase=phase, fault=fault, expects=frozenset(expects), says=says,
        never_says=never_says, file=file, finishes=finishes, loses_rows=loses_rows, loops=loops,
    )  # fmt: skip


def supervisor() -> Iterator[Cell]:
    """A supervisor that ends takes its children with it; the next attempt continues."""
    everywhere = (P.STARTING, P.EVAL, P.SFT, P.PLAYING, P.TRAINING, P.PUBLISHING, P.SAVING,
                  P.STOPPING, P.RESUMING)  # fmt: skip
    for phase in everywhere:
        yield cell(T.SUPERVISOR, phase, F.KILL, KILLED)
        yield cell(T.SUPERVISOR, phase, F.SEGV, KILLED)
        if phase in (P.STARTING, P.RESUMING):  # signals are handled once the store is open
            yield cell(T.SUPERVISOR, phase, F.TERM, STOPPED, KILLED)
        else:
            yield cell(T.SUPERVISOR, phase, F.TERM, STOPPED, says="forge resume")
    for phase in (P.SFT, P.PLAYING, P.TRAINING):
        yield cell(T.SUPERVISOR, phase, F.STOP, KILLED, says="already running as pid")
    for phase in (P.EVAL, P.SFT, P.TRAINING):
        yield cell(T.SUPERVISOR, phase, F.DESCRIPTORS, *LIVES, MACHINE,
                   never_says=SANDBOX)  # fmt: skip
        yield cell(T.SUPERVISOR, phase, F.MEMORY, *LIVES, MACHINE, KILLED, never_says=SANDBOX)
    for phase in (P.SFT, P.TRAINING, P.PLAYING, P.STOPPING):
        allowed = (SURVIVED, RESTARTED, MACHINE, STOPPED)
        yield cell(T.SUPERVISOR, phase, F.SOCKET, *allowed, never_says="^trainer died")


def trainer() -> Iterator[Cell]:
    """A trainer that dies is restarted once from its last checkpoint; a silent one too."""
    for phase in (P.STARTING, P.SFT, P.TRAINING, P.PUBLISHING, P.SAVING, P.RESUMING):
        for fault in (F.KILL, F.SEGV, F.TERM):
            yield cell(T.TRAINER, phase, fault, RESTARTED, says="^trainer: .*restarted")
        yield cell(T.TRAINER, phase, F.STOP, RESTARTED, says="trainer: silent")
    for fault in (F.KILL, F.SEGV):
        yield cell(T.TRAINER, P.STOPPING, fault, DIED, says="trainer died .*killed by signal")
    yield cell(T.TRAINER, P.STOPPING, F.TERM, STOPPED)
    yield cell(T.TRAINER, P.STOPPING, F.STOP, STALLED, says="trainer .*silent")
    for phase in (P.SFT, P.TRAINING):
        yield cell(T.TRAINER, phase, F.DESCRIPTORS, *LIVES, DIED, MACHINE, never_says=SANDBOX)
        yield cell(T.TRAINER, phase, F.MEMORY, *LIVES, DIED, MACHINE, never_says=SANDBOX)
    yield cell(T.RANK, P.SFT, F.KILL, RESTARTED, says="trainer: killed by signal 9")
    yield cell(T.RANK, P.SFT, F.STOP, RESTARTED, says="trainer: silent")
    yield cell(T.RANK, P.TRAINING, F.SEGV, RESTARTED, says="trainer: killed by signal 11")
    yield cell(T.RANK, P.SAVING, F.KILL, RESTARTED, says="trainer: killed by signal 9")


def engine() -> Iterator[Cell]:
    """An engine that dies is replaced, except at its first start, whose cause would last."""
    for fault in (F.KILL, F.SEGV):
        for phase in (P.STARTING, P.RESUMING):
            yield cell(T.ENGINE, phase, fault, DIED, says="serve-0 died .*killed by signal")
        yield cell(T.ENGINE, P.EVAL, fault, *LIVES)  # after its last answer nobody needs it
        for phase in (P.PLAYING, P.TRAINING, P.PUBLISHING):
            yield cell(T.ENGINE, phase, fault, RESTARTED)
        yield cell(T.ENGINE, P.STOPPING, fault, STOPPED)
    yield cell(T.ENGINE, P.EVAL, F.TERM, *LIVES)
    for phase in (P.PLAYING, P.PUBLISHING):
        yield cell(T.ENGINE, phase, F.TERM, RESTARTED)
    yield cell(T.ENGINE, P.EVAL, F.STOP, *LIVES, STALLED)
    for phase in (P.PLAYING, P.PUBLISHING):
        yield cell(T.ENGINE, phase, F.STOP, RESTARTED, STALLED)
    for phase in (P.EVAL, P.PLAYING, P.PUBLISHING):
        yield cell(T.ENGINE, phase, F.SOCKET, *LIVES, DIED, STALLED)
        yield cell(T.ENGINE, phase, F.DESCRIPTORS, *LIVES, DIED, STALLED, MACHINE)
    for phase in (P.EVAL, P.PLAYING):
        yield cell(T.ENGINE, phase, F.MEMORY, *LIVES, DIED, MACHINE)


def judge() -> Iterator[Cell]:
    """A judge that dies is replaced, and no kernel is blamed; a zygote is replaced by its judge."""
    for fault in (F.KILL, F.SEGV):
        for phase in (P.STARTING, P.RESUMING):
            yield cell(T.JUDGE, phase, fault, DIED, says="judge-0 died", never_says=SANDBOX)
        for phase in (P.EVAL, P.PLAYING):
            yield cell(T.JUDGE, phase, fault, *LIVES)
        yield cell(T.JUDGE, P.STOPPING, fault, STOPPED)
    yield cell(T.JUDGE, P.PLAYING, F.KILL, *LIVES, loops=True)
    yield cell(T.JUDGE, P.EVAL, F.TERM, *LIVES)
    yield cell(T.JUDGE, P.EVAL, F.STOP, RESTARTED)
    yield cell(T.JUDGE, P.PLAYING, F.TERM, *LIVES)
    yield cell(T.JUDGE, P.PLAYING, F.STOP, *LIVES)
    yield cell(T.JUDGE, P.PLAYING, F.SOCKET, *LIVES)
    yield cell(T.JUDGE, P.EVAL, F.SOCKET, *LIVES)
    for fault in (F.DESCRIPTORS, F.MEMORY):
        yield cell(T.JUDGE, P.EVAL, fault, *LIVES, MACHINE, never_says=SANDBOX)
        yield cell(T.JUDGE, P.PLAYING, fault, *LIVES, MACHINE, never_says=SANDBOX, loops=True)
    yield cell(T.ZYGOTE, P.STARTING, F.KILL, *LIVES, MACHINE, DIED, never_says=SANDBOX)
    yield cell(T.ZYGOTE, P.RESUMING, F.KILL, *LIVES, MACHINE, DIED, never_says=SANDBOX)
    for phase in (P.EVAL, P.PLAYING):
        for fault in (F.KILL, F.SEGV, F.TERM):
            yield cell(T.ZYGOTE, phase, fault, SURVIVED, loops=phase is P.PLAYING)
    yield cell(T.ZYGOTE, P.EVAL, F.STOP, *LIVES)
    yield cell(T.ZYGOTE, P.EVAL, F.DESCRIPTORS, *LIVES)
    yield cell(T.ZYGOTE, P.EVAL, F.MEMORY, *LIVES)
    for phase in (P.EVAL, P.PLAYING):
        for fault in (F.KILL, F.STOP, F.TERM, F.SEGV):
            yield cell(T.RUNNER, phase, fault, SURVIVED, loops=phase is P.PLAYING)


def outlets() -> Iterator[Cell]:
    """Report, notification and sink never fail a run."""
    for fault in (F.KILL, F.STOP, F.TERM, F.SEGV):
        yield cell(T.REPORT, P.ENDING, fault, SURVIVED, says="report")
        yield cell(T.NOTIFY, P.ENDING, fault, SURVIVED, says="could not notify")
        yield cell(T.SINK, P.PLAYING, fault, SURVIVED, says="sink-tensorboard failed")


def disks() -> Iterator[Cell]:
    """A disk that fails ends a run with one line, and the next attempt continues."""
    for phase in (P.STARTING, P.EVAL, P.SFT, P.PLAYING, P.TRAINING, P.PUBLISHING, P.SAVING,
                  P.STOPPING, P.RESUMING):  # fmt: skip
        says = "(?i)no space|full|free"
        yield cell(T.STORE, phase, F.DISK_FULL, MACHINE, DIED, says=says)
    for phase in (P.EVAL, P.SFT, P.TRAINING, P.RESUMING):
        yield cell(T.STORE, phase, F.DISK_LOW, MACHINE, says="disk nearly full")
    for phase in (P.EVAL, P.SFT, P.TRAINING):
        yield cell(T.STORE, phase, F.READ_ONLY, MACHINE, DIED, says="(?i)read-only|readonly|I/O")
    yield cell(T.STORE, P.STOPPED, F.READ_ONLY, MACHINE, says="(?i)read-only|readonly")
    yield cell(T.STORE, P.STOPPED, F.DISK_FULL, MACHINE, says="(?i)no space|full|free")
    for phase in (P.EVAL, P.PLAYING):
        loops = phase is P.PLAYING
        yield cell(T.MACHINE, phase, F.SHM_FULL, SURVIVED, loops=loops)
        yield cell(T.MACHINE, phase, F.TMP_FULL, *LIVES, MACHINE, DIED, loops=loops)
    yield cell(T.MACHINE, P.STARTING, F.TMP_FULL, *LIVES, MACHINE, DIED, never_says=SANDBOX)
    for phase in (P.EVAL, P.SFT, P.PLAYING, P.TRAINING):
        for fault in (F.CLOCK_FORWARD, F.CLOCK_BACK):
            yield cell(T.MACHINE, phase, fault, SURVIVED)


def damages() -> Iterator[Cell]:
    """A damaged file is gone back from, made again, or named."""
    newest = "checkpoints/stage-0/checkpoint-*"
    yield cell(T.TRAINER, P.STOPPED, F.DELETED, *LIVES, file=newest)
    for file in ("__0_0.distcp", ".metadata", "trainer_state.json"):
        for fault in (F.TRUNCATED, F.FLIPPED, F.EMPTIED):
            yield cell(T.TRAINER, P.STOPPED, fault, *LIVES, file=f"{newest}/{file}",
                       says="checkpoint-")  # fmt: skip
    for fault in (F.DELETED, F.TRUNCATED, F.GARBAGE):
        yield cell(T.TRAINER, P.STOPPED, fault, *LIVES, file="batches/0-*.npz")
    yield cell(T.ENGINE, P.STOPPED, F.DELETED, *LIVES, file="weights")
    yield cell(T.ENGINE, P.STOPPED, F.DELETED, *LIVES, file="weights/grpo-*")
    for fault in (F.TRUNCATED, F.FLIPPED):
        yield cell(T.ENGINE, P.STOPPED, fault, *LIVES, file="weights/grpo-*/model.safetensors")
    # An empty tokens.db is as good as none, which the advice for a damaged one asks for.
    yield cell(T.STORE, P.STOPPED, F.EMPTIED, *LIVES, file="tokens.db")
    for fault in (F.TRUNCATED, F.EMPTIED, F.GARBAGE):
        for file in ("run.db", "tokens.db") if fault is not F.EMPTIED else ("run.db",):
            yield cell(T.STORE, P.STOPPED, fault, MACHINE, file=file, says=file,
                       finishes=False, loses_rows=True)  # fmt: skip
    for fault in (F.TRUNCATED, F.FLIPPED, F.DELETED):
        yield cell(T.STORE, P.STOPPED, fault, *LIVES, MACHINE, file="run.db-wal",
                   says="missing|damaged|lost", finishes=None, loses_rows=True)  # fmt: skip
    for fault in (F.DELETED, F.EMPTIED, F.GARBAGE):
        yield cell(T.STORE, P.STOPPED, fault, *LIVES, file="STATUS.json")
    yield cell(T.STORE, P.STOPPED, F.DELETED, *LIVES, file="logs")
    yield cell(T.STORE, P.STOPPED, F.DELETED, *LIVES, file="lock")
    for fault in (F.DELETED, F.EMPTIED, F.GARBAGE):
        yield cell(T.STORE, P.STOPPED, fault, Seen.USAGE, MACHINE, file="experiment.toml",
                   says=r"experiment\.toml", finishes=False)  # fmt: skip
    for file in ("data/rows-0.jsonl", "data/pairs.jsonl"):
        yield cell(T.TRAINER, P.STOPPED, F.DELETED, *LIVES, file=file)
        for fault in (F.TRUNCATED, F.GARBAGE):
            yield cell(T.TRAINER, P.STOPPED, fault, *LIVES, file=file, says=f"{file}: .*made again")


CELLS = sorted(
    [*supervisor(), *trainer(), *engine(), *judge(), *outlets(), *disks(), *damages()],
    key=lambda each: each.fault is not F.STOP,
)
"""All cells. A stopped process is noticed after minutes, so those come first."""
