"""The Python API of a run: `forge.open("last").rollouts(status="correct").to_pandas()`.

Each method returns `Rows`, a list of dictionaries; only `to_pandas` imports pandas. Everything
without a method is SQL: `run.rows("SELECT * FROM v_failures")`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.errors import ConfigError, MachineError
from forge.store.codec import decode_ids, decode_logprobs
from forge.store.layout import RunPaths, find_run
from forge.store.reader import RunReader
from forge.views.rollouts import ROLLOUTS, TURN_COLUMNS, Filter, find

if TYPE_CHECKING:
    import pandas

    from forge.store.reader import Params

_TURNS = f"""
WITH found AS MATERIALIZED (SELECT *, row_number() OVER () AS place FROM ({{found}}))
SELECT {TURN_COLUMNS} FROM found CROSS JOIN v_turns USING (group_id, rollout) ORDER BY place, turn
"""
_TOKENS = {"prompt_ids": decode_ids, "completion_ids": decode_ids, "logprobs": decode_logprobs}


class Rows(list[dict[str, Any]]):
    """Result of a query: one dictionary per row."""

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a DataFrame. Raises MachineError if pandas is not installed."""
        try:
            import pandas
        except ImportError:
            raise MachineError(
                "to_pandas: pandas is not installed; pip install pandas, or keep the rows"
            ) from None
        return pandas.DataFrame.from_records(list(self))


class Run(RunReader):
    """One run, opened read-only, while it is being written or later. Close it, or use it in a
    `with`.

    Filters are those of `forge rollouts`: rollout, problem (a glob), level, status,
    min_speedup, stage, step, purpose, best, limit.
    """

    def rows(self, sql: str, params: Params = ()) -> Rows:
        """Rows of any query."""
        return Rows(super().rows(sql, params))

    def rollouts(self, *, limit: int | None = None, **filters: Any) -> Rows:
        """One row per rollout, latest first: stage, step, statuses by turn, best reward."""
        return self._found(ROLLOUTS, limit=limit, **filters)

    def turns(self, *, limit: int | None = None, **filters: Any) -> Rows:
        """One row per turn of the same rollouts, with texts. `limit` counts rollouts."""
        return self._found(_TURNS, limit=limit, **filters)

    def steps(self) -> Rows:
        """One row per step: the learning curve."""
        return self.rows("SELECT * FROM v_steps ORDER BY stage, step")

    def kernels(self, *, limit: int | None = None) -> Rows:
        """Best kernel of each problem, best first, with code."""
        most = -1 if limit is None else limit
        return self.rows("SELECT * FROM v_best_kernels ORDER BY rank LIMIT ?", (most,))

    def batch(self, *, stage: int, step: int) -> Rows:
        """Samples of a step with their tokens: all that the trainer received. Each row has
        prompt_ids [P], completion_ids [T] and logprobs [T] as tuples; None if `[store] keep_tokens`
        has dropped them."""
        same = "t.group_id = s.group_id AND t.rollout = s.rollout AND t.turn = s.turn"
        rows = self.rows(
            "SELECT s.*, t.prompt_ids, t.completion_ids, t.logprobs FROM v_samples s "
            f"LEFT JOIN tokens.tokens t ON {same} WHERE s.stage = ? AND s.step = ? "
            "ORDER BY s.sample_id",
            (stage, step),
        )
        for row in rows:
            for name, decode in _TOKENS.items():
                row[name] = None if row[name] is None else decode(row[name])
        return rows

    def _found(self, sql: str, **filters: Any) -> Rows:
        unknown = filters.keys() - Filter.__dataclass_fields__.keys()
        if unknown:
            raise ConfigError(
                f"{', '.join(sorted(unknown))}: no such filter; allowed: "
                f"{', '.join(Filter.__dataclass_fields__)}"
            )
        found, params = find(Filter(**filters))
        return self.rows(sql.format(found=found), params)


def open_run(run: str | Path | RunPaths, *, store_dir: str | Path = "runs") -> Run:
    """Opens a run by path, name, `name-n` or `last`. Raises ConfigError if there is no such run, it
    is empty, or its schema is newer."""
    paths = run if isinstance(run, RunPaths) else find_run(run, store_dir=Path(store_dir))
    return Run(paths)
