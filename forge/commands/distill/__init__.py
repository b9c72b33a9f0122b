"""`forge data distill`: traces of a teacher on a set of problems, judged, as SFT rows.

Called by the command line. A teacher plays rollouts as a run's model does (`forge.rollout.play`),
behind any OpenAI-compatible endpoint (`forge.serve.remote.teacher`). Never trains, and never
imports the supervisor.
"""
