"""Problems, prompts and answers. Host code: no torch.

Problems come from a generator or a directory (problems.py, families/), conversations about them
become tokens (prompts/, chat.py), and completions become candidates (answers.py). SFT rows are in
pairs/. Called by the supervisor and the loop; never imports either.
"""
