"""Commands that need no supervisor: chat, serve, judge, doctor, logs, rows from a run.

Called by `forge/cli/` and by `import forge`; no other room imports from here.
"""
