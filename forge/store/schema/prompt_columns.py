"""Schema 7: the prompts of each turn. Applied by `migrations` after `estimate_tables`.

The hash names templates and settings; the event `prompts` with the same hash in its message has
them whole.
"""

RUN_TABLES_7 = """
ALTER TABLE turns ADD COLUMN prompt_hash TEXT;   -- templates and settings of its prompt, or null
"""

PROMPT_HASH = "t.prompt_hash"
"""Expression of the column in `v_turns`."""
NO_PROMPT_HASH = "NULL AS prompt_hash"
"""The same for runs of older schemas."""
