"""Engines that somebody else runs behind an OpenAI-compatible URL (`[serve] url`)."""
