"""Results by key on disk, a JSON line each: what survives a killed process.

A line is complete or cut by a kill, and then ignored. In memory is a line's place alone.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, BinaryIO

from forge.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class ResultLog:
    """A file of results."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[str, int] = {}
        if path.is_file():
            self._read()
        self._file = self._open()

    def _open(self) -> BinaryIO:
        return self._path.open("ab")

    def _read(self) -> None:
        whole = 0
        with self._path.open("rb") as file:
            for line in file:
                try:
                    key = json.loads(line)["key"] if line.endswith(b"\n") else None
                except (ValueError, LookupError, TypeError):
                    key = None
                if key is None:
                    break
                self._places[key] = whole
                whole += len(line)
        os.truncate(self._path, whole)

    def get(self, key: str) -> dict[str, Any] | None:
        """The result of a key."""
        place = self._places.get(key)
        if place is None:
            return None
        with self._path.open("rb") as file:
            file.seek(place)
            row: dict[str, Any] = json.loads(file.readline())
        del row["key"]
        return row

    def add(self, key: str, result: Mapping[str, Any]) -> None:
        """Keeps a result. Raises MachineError where it cannot be written."""
        try:
            place = self._file.seek(0, os.SEEK_END)
            self._file.write(json.dumps({"key": key, **result}).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise MachineError(f"{self._path}: cannot be written: {error.strerror}") from error
        self._places[key] = place

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
