"""Commands that need no supervisor, one file a command; rooms for judge, doctor and OpenEnv.

Called by `forge/cli/` and by `import forge`; no other room imports from here.
"""
