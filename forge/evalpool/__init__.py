"""Judging kernels: the host's side, without torch. `pool` owns the judges, which are child
processes (`judge/`) or pools behind a URL.

Called by the supervisor and by commands. Never imports `judge/`.
"""
