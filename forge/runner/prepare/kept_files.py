"""Files of `data/` that a run makes once and reads at every resume: pairs and rows.

A file of JSON lines has its digest beside it. One that was damaged since is deleted before anyone
reads it, so the run makes it again, as after a deletion.
"""

from __future__ import annotations

from pathlib import Path

from forge.store.layout import RunPaths, write_file

DIGEST = ".xxh3"
"""Suffix of the file with the digest."""


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
        if (
            file.exists()
            and _digest(file.read_bytes()) != noted.read_text(errors="replace").strip()
        ):
            file.unlink()
            damaged.append(f"data/{file.name}")
    return damaged


def _digest(content: bytes) -> str:
    import xxhash  # with the first file, not with every command

    return xxhash.xxh3_128_hexdigest(content)
