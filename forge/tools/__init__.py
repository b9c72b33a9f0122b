"""Tools for a model that writes kernels, in rollouts and `forge mcp`. A candidate runs in the
sandbox of a judge: `toolbox` asks the pool, and never imports it."""
