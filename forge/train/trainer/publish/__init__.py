"""Publishing weights, and probes that check what an engine serves. Imports no trainer."""
