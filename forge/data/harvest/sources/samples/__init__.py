"""The samples of torch's own tests (OpInfo, module_db) as problems: `source.py` is the source of a
harvest, `child.py` the process that imports torch for it."""
