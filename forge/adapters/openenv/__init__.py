"""`forge judge --serve --openenv PROBLEMS`: problems as an environment of the OpenEnv protocol.

Called by the command line. An episode is one problem, with up to `max_turns` answers, each judged
and rewarded. The fields are those of OpenEnv's own environment `kernrl`, so a client of that one
needs another URL and nothing else. Never imports the openenv package: its clients need a WebSocket
and JSON alone. Never imports a trainer.
"""
