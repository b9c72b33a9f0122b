"""Everything that a run needs before its first stage: model files, training rows, problems."""
