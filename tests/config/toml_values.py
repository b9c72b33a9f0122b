"""Random values, their text on one line as in an argument of `--set`."""

import json
from typing import Any

from hypothesis import strategies as st

scalars = st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
anything = st.recursive(
    scalars,
    lambda x: st.lists(x, max_size=2) | st.dictionaries(st.text(max_size=3), x, max_size=2),
    max_leaves=4,
)


def inline(value: Any) -> str:
    """One value as TOML without a line end."""
    if isinstance(value, dict):
        pairs = (f"{inline(str(name))} = {inline(item)}" for name, item in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(inline, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower()
