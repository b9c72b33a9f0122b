"""What reports and sinks do not show of an experiment, since others read them: the path of a
webhook, and values of `env` tables whose names say that they are secrets.
"""

from __future__ import annotations

import re

HIDDEN = "…"
_WEBHOOK = re.compile(
    r'^(webhook = "https?://)(?:[^/"@]*@)?([^/"\\]*)(?:[^"\\]|\\.)*', flags=re.MULTILINE
)
_TABLE = re.compile(r"^\[+([^\]]+)\]+$")
_SECRET = re.compile(
    r'^("?\w*(?:TOKEN|KEY|SECRET|PASS|CREDENTIAL|DSN|URL)\w*"? = ).*$', flags=re.IGNORECASE
)


def hide_secrets(experiment: str) -> str:
    """The resolved experiment, as `config.dump` writes it, with `…` for each secret."""
    lines, is_env = [], False
    for line in experiment.split("\n"):
        if table := _TABLE.match(line):
            is_env = table[1].split(".")[-1] == "env"
        lines.append(_SECRET.sub(rf'\1"{HIDDEN}"', line) if is_env else line)
    return _WEBHOOK.sub(rf"\1\2/{HIDDEN}", "\n".join(lines))
