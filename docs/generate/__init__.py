"""Reference pages made from code: keys, commands, store, HTTP, Python, verdicts, exit codes.

`hook.py` adds them to the site whenever MkDocs builds it, so no page can be stale;
`python -m docs.generate DIR` writes them to files. `pages.PAGES` names them.
"""
