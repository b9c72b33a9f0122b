"""Everything that a run needs before its first stage: model files, training rows, problems.

Called by `forge/runner/prepare_run.py` and by the stages. Never imports `forge/runner/stages/`.
"""
