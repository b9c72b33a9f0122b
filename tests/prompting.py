"""Short prompts, for tests that need some."""

from forge.config.schema import PromptTable
from forge.data.prompts.prompt_set import make_prompts

PROMPTS = make_prompts(PromptTable(preset="tiny"))
"""Prompts of the preset `tiny`, without facts about judges."""
