"""Request of `forge judge`: problems, candidates and options, checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forge.commands.judge.files import require_path
from forge.commands.judge.overrides import parse_overrides
from forge.commands.judge.settings import check_precision
from forge.commands.source_text import STDIN
from forge.data.directory import Constant
from forge.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingRequest:
    """Problems and candidates to judge, and how much of each verdict is wanted."""

    problem: Path
    """A problem file, or a directory of them."""
    candidate: str
    """A file, a directory, or `-` for stdin."""
    overrides: Mapping[str, Constant] = field(default_factory=dict[str, Constant])
    """Values for module constants of the problem files."""
    precision: str = "fp32"
    is_timed: bool = True
    is_profiled: bool = False

    @classmethod
    def make(
        cls,
        problem: Path | None,
        candidate: str | None,
        *,
        overrides: Sequence[str] = (),
        precision: str = "fp32",
        is_timed: bool = True,
        is_profiled: bool = False,
    ) -> JudgingRequest:
        """A request from the arguments of the command line. Raises ConfigError."""
        if problem is None or candidate is None:
            missing = "PROBLEM and CANDIDATE" if problem is None else "CANDIDATE"
            raise ConfigError(f"forge judge: no {missing}; give both, or --serve")
        if not candidate:
            raise ConfigError("forge judge: CANDIDATE is empty; a file, a directory or - is needed")
        require_path(problem)
        if candidate != STDIN:
            require_path(Path(candidate))
        check_precision(precision)
        return cls(
            problem=problem,
            candidate=candidate,
            overrides=parse_overrides(overrides),
            precision=precision,
            is_timed=is_timed,
            is_profiled=is_profiled,
        )

    @property
    def is_directory(self) -> bool:
        """True if the candidate is a directory of candidates."""
        return Path(self.candidate).is_dir()
