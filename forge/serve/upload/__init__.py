"""Weights over HTTP: the files of a directory of weights, the run that may publish, and the files
that a server was sent.

`held`, `claims` and `endpoints` are the server's side (`forge serve --weights`), `sender` is the
run's; `manifest` and `protocol` are used by both. Called by `commands.serve` and by
`serve.remote.taking`. Never imports an engine.
"""
