"""Roll-ups: the views equal plain sums over all turns, whatever was written in whatever order."""

import math
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forge.records import (
    AttemptEnd,
    Event,
    Group,
    GroupStart,
    Metrics,
    Purpose,
    Sample,
    Status,
    Turn,
)
from forge.store.reader import open_run
from forge.store.schema.create import TOKEN_SCHEMA, create, create_run
from forge.store.schema.rollups import BY_STEP, settle_oldest
from forge.store.schema.views import summed_views
from forge.store.write.rows import Record, RowWriter
from forge.store.write.writer import open_writer
from tests.examples import examples
from tests.store import storefactory

EVERYTHING = {
    "turns": "v_turns", "uses": "v_samples", "replayed": "v_replayed"
}  # fmt: skip
PARTS = {name: sql.format(**EVERYTHING) for name, sql in BY_STEP.items()}
PLAIN = summed_views(PARTS, best=f"({PARTS.pop('best')})")
"""The views without roll-ups: sums over all turns."""
SUMMED = ["v_groups", "v_steps", "v_levels", "v_failures", "v_best_kernels", "v_problems",
          "v_duplicates", "v_reward_terms", "v_phases", "v_staleness"]  # fmt: skip


class Store:
    """Both databases in memory, written as by the writer's thread, without its clock."""

    def __init__(self) -> None:
        self.run = sqlite3.connect(":memory:", isolation_level=None)
        self.tokens = sqlite3.connect(":memory:", isolation_level=None)
        create_run(self.run, path=Path("run.db"))
        create(self.tokens, path=Path("tokens.db"), tables=TOKEN_SCHEMA)
        self.rows = RowWriter(self.run, tokens=self.tokens, texts="plain", clock=lambda: 1.0)

    def close(self) -> None:
        self.run.close()
        self.tokens.close()

    def put(self, *records: Record) -> None:
        for record in records:
            self.rows.write(record)

    def settle(self, *, max_open: int = 0, times: int = 1 << 30) -> None:
        for _ in range(times):
            if not settle_oldest(self.run, max_open=max_open):
                return

    def num_open(self) -> int:
        return self.run.execute("SELECT count(*) FROM open_steps").fetchone()[0]

    @contextmanager
    def views(self, sql: str) -> Iterator[None]:
        """Hides the store's views by these."""
        names = []
        for part in (part.strip() for part in sql.split(";\n")):
            if "CREATE VIEW" in part:
                self.run.execute(part.replace("CREATE VIEW", "CREATE TEMP VIEW", 1))
                names.append(part[part.index("CREATE VIEW") :].split()[2])
        try:
            yield
        finally:
            for name in names:
                self.run.execute(f"DROP VIEW temp.{name}")

    def read(self, view: str) -> list[tuple[Any, ...]]:
        found = self.run.execute(f"SELECT * FROM {view}")
        names = tuple(column[0] for column in found.description)
        return [names, *sorted(found.fetchall(), key=repr)]


def differences(store: Store) -> dict[str, tuple[object, object]]:
    """Views that differ from the plain sums; floats may be summed in another order."""
    ours = {view: store.read(view) for view in SUMMED}
    with store.views(PLAIN):
        theirs = {view: store.read(view) for view in SUMMED}
    return {
        view: (ours[view], theirs[view])
        for view in SUMMED
        if len(ours[view]) != len(theirs[view])
        or not all(
            same(a, b)
            for mine, other in zip(ours[view], theirs[view], strict=True)
            for a, b in zip(mine, other, strict=True)
        )
    }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-12)
    return a == b


STATUSES: tuple[Status, ...] = (
    Status.CORRECT,
    Status.CORRECT,
    Status.WRONG,
    Status.TIMEOUT,
    Status.INFRA_ERROR,
)


def played(rng: random.Random, group_id: int) -> Group:
    """A random group of any purpose, with one of a few steps, problems and kernels."""
    purpose = rng.choice([Purpose.TRAIN, Purpose.TRAIN, Purpose.EVAL])
    rows = [rng.choices(STATUSES, k=rng.randint(1, 3)) for _ in range(rng.randint(1, 3))]
    made = storefactory.group(
        group_id, rows, problem_id=f"softmax-{rng.randrange(3):04d}", purpose=purpose,
        stage=rng.randrange(2), step=rng.randrange(3), version=rng.randrange(4),
        is_greedy=rng.random() < 0.2, speed=storefactory.timing(rng.choice([0.5, 1.0, 2.5, 7.0])),
    )  # fmt: skip
    return replace(
        made,
        trajectories=tuple(
            replace(each, turns=tuple(kernel(rng, t) for t in each.turns))
            for each in made.trajectories
        ),
    )


def start_of(made: Group) -> GroupStart:
    names = GroupStart.__dataclass_fields__
    return GroupStart(**{name: getattr(made, name) for name in names})


def kernel(rng: random.Random, made: Turn) -> Turn:
    """A turn with one of a few kernels; some are not timed."""
    code = f"# kernel {rng.randrange(6)}" if rng.random() < 0.7 else made.code
    verdict = made.verdict if rng.random() < 0.8 else replace(made.verdict, timing=None)
    verdict = replace(verdict, num_launches=rng.randrange(3), device=rng.choice(["a", "b"]))
    return replace(made, code=code, completion_text=code, verdict=verdict)


def random_run(rng: random.Random) -> Iterator[Record | None]:
    """Records in any order that a run may produce; None where steps are settled."""
    groups: dict[int, Group] = {}
    offered: list[Sample] = []
    yield storefactory.attempt(current := 1)
    yield storefactory.problem(0)
    for number in range(2, 40):
        act = rng.random()
        if act < 0.3 or not groups:
            made = played(rng, group_id := rng.randrange(12))  # sometimes an existing one
            if group_id not in groups and rng.random() < 0.9:  # older versions wrote no start
                yield start_of(made)
            for trajectory in made.trajectories:
                yield from trajectory.turns
                if rng.random() < 0.9:
                    yield trajectory
            if rng.random() < 0.9:
                groups[group_id] = made
                yield made
        elif act < 0.4:
            yield rng.choice(list(groups.values()))
        elif act < 0.5:
            before = rng.choice(list(groups.values())).trajectories[0].turns[0]
            yield replace(kernel(rng, before), reward=rng.choice([None, 0.1, 0.9]))
        elif act < 0.65:
            offered += (
                new := storefactory.samples(
                    rng.choice(list(groups.values())), first_id=100 * number
                )
            )
            yield from new
        elif act < 0.8 and offered:
            for sample in rng.sample(offered, k=min(4, len(offered))):
                yield storefactory.use(
                    sample, stage=1, step=rng.randrange(3), staleness=rng.randrange(2)
                )
        elif act < 0.85:
            if rng.random() < 0.5:
                yield AttemptEnd(attempt=current, ended_at=2.0, exit_code=0, reason="done")
            if rng.random() < 0.8:
                yield storefactory.attempt(current := number)
        elif act < 0.87:
            yield Metrics(
                stage=rng.randrange(2),
                step=rng.randrange(3),
                at=1.0,
                values={"rollout/groups/count": 4.0},
            )
        elif act < 0.88:
            data = {"stage": rng.randrange(2), "groups_per_step": rng.randrange(6)}
            yield Event(at=1.0, kind="stage_start", message="", data=data)
        elif act < 0.9:
            yield storefactory.problem(rng.randrange(3), level=rng.randrange(3))
        else:
            yield None


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 32))
def test_views_equal_the_plain_sums_whatever_was_written(seed: int) -> None:
    rng = random.Random(seed)
    with closing(Store()) as store:
        for record in random_run(rng):
            if record is None:
                store.settle(times=rng.randint(1, 4))
            else:
                store.put(record)
            if rng.random() < 0.05:
                assert differences(store) == {}
        assert differences(store) == {}
        store.settle()
        assert differences(store) == {}
        assert store.num_open() == 0


def test_a_settled_step_is_read_from_its_roll_up() -> None:
    """Otherwise the tests above would compare the plain sums with themselves."""
    with closing(Store()) as store:
        store.put(
            storefactory.attempt(),
            storefactory.problem(0),
            storefactory.group(0, [[Status.CORRECT], [Status.WRONG]]),
        )
        store.settle()
        tables = "steps groups failures reward_terms phases levels duplicates"
        for table in tables.split():
            store.run.execute(f"UPDATE rolled_{table} SET stage = 77")
            assert [row for row in store.read(f"v_{table}")[1:] if 77 in row], table


def test_a_writer_leaves_a_few_steps_open_and_settles_all_when_it_ends(tmp_path: Path) -> None:
    storefactory.make_root(tmp_path / "toy-1")
    open_while, open_after = anyio.run(write_steps, tmp_path / "toy-1")
    assert 1 <= open_while <= 5
    assert open_after == 0


async def write_steps(root: Path) -> tuple[int, int]:
    async with open_writer(root, storefactory.Options()) as writer:
        await writer.put(storefactory.attempt(), storefactory.problem(0))
        for step in range(12):
            await writer.put(storefactory.group(step, [[Status.CORRECT]], step=step))
            await writer.flush()
        with open_run(root) as reader:
            num_open = reader.value("SELECT count(*) FROM open_steps")
    with open_run(root) as reader:
        return num_open, reader.value("SELECT count(*) FROM open_steps")


def test_steps_left_open_by_a_killed_run_are_settled_by_the_next_writer(tmp_path: Path) -> None:
    root = tmp_path / "toy-1"
    storefactory.make_root(root)
    anyio.run(write_steps, root)
    storefactory.edit(root / "run.db", "INSERT INTO open_steps (stage, step) VALUES (1, 3)")
    with open_run(root) as reader:
        before = reader.rows("SELECT * FROM v_steps ORDER BY step")
    assert [row["step"] for row in before] == list(range(12))

    async def reopen() -> None:
        async with open_writer(root, storefactory.Options()):
            pass

    anyio.run(reopen)
    with open_run(root) as reader:
        assert reader.value("SELECT count(*) FROM open_steps") == 0
        assert reader.rows("SELECT * FROM v_steps ORDER BY step") == before


def test_a_resumed_run_equals_the_plain_sums() -> None:
    with closing(Store()) as store:
        store.put(*storefactory.resumed_run())
        for _ in range(8):
            assert differences(store) == {}
            store.settle(times=1)
        assert store.read("v_replayed")[1:]


def test_the_noise_of_a_judge_is_that_of_kernels_timed_more_than_once() -> None:
    with closing(Store()) as store:
        for number, (code, speedup) in enumerate((("a", 1.0), ("a", 2.0), ("b", 1.0), ("a", None))):
            speed = None if speedup is None else storefactory.timing(speedup)
            store.put(storefactory.turn(number, code=f"# kernel {code}", speed=speed))
        (names, found) = store.read("v_judge_noise")
        row = dict(zip(names, found, strict=True))
        assert (row["num_times"], row["low_us"], row["mean_us"]) == (2, 50.0, 75.0)
        assert row["relative_range"] == pytest.approx(50 / 75)


def test_a_step_that_is_open_and_settled_at_once_is_made_again(tmp_path: Path) -> None:
    """As a damaged WAL leaves it: older pages beside newer ones."""
    root = anyio.run(storefactory.write_run, tmp_path / "toy-1", storefactory.small_run())
    whole = storefactory.read_views(root)
    with closing(sqlite3.connect(root / "run.db")) as run, run:
        name = "open_step_drops_its_rows"
        (sql,) = run.execute("SELECT sql FROM sqlite_master WHERE name = ?", (name,)).fetchone()
        run.execute(f"DROP TRIGGER {name}")
        run.execute(
            "INSERT INTO open_steps (stage, step) SELECT DISTINCT stage, step FROM rolled_groups"
        )
        run.execute(sql)
        run.execute("DELETE FROM rolled_steps WHERE step = (SELECT max(step) FROM rolled_steps)")
    anyio.run(storefactory.write_run, root, [])
    assert storefactory.read_views(root) == whole
