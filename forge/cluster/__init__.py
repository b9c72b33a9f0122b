"""Judges, engines and ranks of a run on other machines, which are nodes of a Ray cluster.

    supervisor ──Unix socket──▶ broker, the only process here that imports Ray
        │                          │ actors: placed by resources and labels, one for each child
        │                          ▼
        └──HTTP, TCP, token──▶ child of a host actor on a node: the same as at home

Called by `runner.work`, `runner.stages.trainer`, `forge plan` and `forge cluster check`. Ray places
hosts and notices lost nodes; a host starts its child through `forge.process` and the child ends
with it, as it does with a supervisor. Never imports the store, the loop or a judge's own code. Ray
is imported in the broker and on nodes only, through `connection.import_ray`.
"""
