"""Hides secrets of an experiment in reports, comparisons and sinks, which other people read: the
path of a webhook, the arguments of a notification command, and `env` values whose names look like
secrets.
"""

from __future__ import annotations

import re

HIDDEN = "…"
_WEBHOOK = re.compile(r"""(\bwebhook\s*=\s*["']+https?://)(?:[^/"']*@)?([^/?#"'\\]*).*$""")
_COMMAND = re.compile(r"""^(\W?\s*command\s*=\s*["']+)([\w./-]*).*$""")
_TABLE = re.compile(r"^\[+([^\]]+)\]+$")
_NAME = r"\w*(?:TOKEN|KEY|SECRET|PASS|CREDENTIAL|DSN|URL)\w*"
_SECRET = re.compile(rf'^("?{_NAME}"? = ).*$', flags=re.IGNORECASE)
_LITERAL = re.compile(
    rf"""^([+-]?\s*(?:export )?["']?{_NAME}["']?\s*[=:]\s*)(["']).*$""", flags=re.IGNORECASE
)
_KEY = re.compile(rf"notify\.(?:webhook|command)|.*\benv\.{_NAME}", flags=re.IGNORECASE)


def hide_secrets(experiment: str) -> str:
    """The resolved experiment, as `dump_experiment` writes it, with `…` for each secret."""
    lines, table = [], ""
    for line in experiment.split("\n"):
        if found := _TABLE.match(line):
            table = found[1]
        hidden = _hide_in_line(line) if table == "notify" else line
        is_env = table.split(".")[-1] == "env"
        lines.append(_SECRET.sub(rf'\1"{HIDDEN}"', hidden) if is_env else hidden)
    return "\n".join(lines)


def hide_in_diff(diff: str) -> str:
    """A diff of any files with secrets hidden in every line that looks like an experiment's."""
    lines = (_hide_in_line(line) for line in diff.split("\n"))
    return "\n".join(_LITERAL.sub(rf"\1\2{HIDDEN}\2", line) for line in lines)


def is_secret(key: str) -> bool:
    """True if the value of a dotted key (`notify.webhook`) must not be shown."""
    return _KEY.fullmatch(key) is not None


def _hide_in_line(line: str) -> str:
    line = _WEBHOOK.sub(rf'\1\2/{HIDDEN}"', line)
    return _COMMAND.sub(rf'\1\2 {HIDDEN}"', line)
