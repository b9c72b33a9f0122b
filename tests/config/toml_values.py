"""Random values, their text on one line as in an argument of `--set`, and random settings."""

import json
import math
from typing import Any

from hypothesis import strategies as st

scalars = st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
anything = st.recursive(
    scalars,
    lambda x: st.lists(x, max_size=2) | st.dictionaries(st.text(max_size=3), x, max_size=2),
    max_leaves=4,
)

texts = st.text(max_size=8)


def is_finite(value: Any) -> bool:
    """False for the two kinds of numbers that are no size of a problem: NaN and infinities."""
    return not isinstance(value, float) or math.isfinite(value)


settings_of_free_form = st.fixed_dictionaries(
    {
        "seed": st.integers(min_value=0, max_value=2**31 - 1),
        "limits": st.fixed_dictionaries(
            {}, optional={"hours": st.floats(min_value=0, exclude_min=True, allow_nan=False)}
        ),
        "notify": st.fixed_dictionaries({"command": st.text(min_size=1, max_size=8)}),
        "judge": st.fixed_dictionaries({"env": st.dictionaries(texts, texts, max_size=2)}),
        "problems": st.fixed_dictionaries(
            {
                "include": st.lists(texts, max_size=2),
                "overrides": st.dictionaries(texts, scalars.filter(is_finite), max_size=2),
            }
        ),
    }
)
"""Tables whose keys take any text or number."""


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
