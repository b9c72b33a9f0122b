"""A stored program as text. Called by `forge judge --explain` and `forge show --turn`.

The bytes are a candidate's: they are read within the bounds of the format, and the text must be
made printable before it is shown.
"""

from __future__ import annotations

from forge.errors import ConfigError


def explain_packed(packed: bytes | None) -> str | None:
    """The text of a program that a verdict or the store holds; None without one.

    Raises:
        ConfigError: this version cannot read it.
    """
    if packed is None:
        return None
    import zstandard

    from forge.evalpool.judge.program import wire
    from forge.evalpool.judge.program.explain import explain
    from forge.evalpool.judge.program.format import InvalidProgram
    from forge.evalpool.judge.program.limits import MAX_BYTES

    try:
        if zstandard.frame_content_size(packed) > MAX_BYTES:
            raise InvalidProgram("larger than a program may be")
        return explain(wire.loads(zstandard.decompress(packed, max_output_size=MAX_BYTES)))
    except (zstandard.ZstdError, InvalidProgram) as error:
        raise ConfigError(f"this version of forge cannot read the program: {error}") from error
