"""The bytes of a program: capture children send them, judges parse them, stores keep them.

    magic   8 bytes
    length  of the JSON, 4 bytes, little endian
    JSON    {"version", "texts": [lengths], "program": records without blobs}
    blobs   TTIR texts, then the contents of constants, without gaps

In the JSON a record is an object without the fields that have their default; a kernel's `ttir` is a
position in `texts` (equal texts are stored once), and `constants` is a list of lengths. A node, and
an argument that is no scalar, is an object of one key: `{"launch": {...}}`, `{"tensor": 3}`,
`{"dtype": "float16"}`, `{"float": "nan"}`.

`loads` trusts nothing: it raises InvalidProgram, and nothing else, for bytes that are no program
within the bounds of `program.limits`. Plain data: imports neither torch nor triton.
"""

from forge.evalpool.judge.program.wire.layout import dumps, loads

__all__ = ["dumps", "loads"]
