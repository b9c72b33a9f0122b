"""The judge over HTTP: `/v1/judge`, `/v1/judge/batch`, `/v1/problems`, `/v1/health`,
`/openapi.json`.

Served by `forge judge --serve`, with the routes between forge's own processes
(`forge.evalpool.served`), through the same door. `forge.client` is its client.
"""
