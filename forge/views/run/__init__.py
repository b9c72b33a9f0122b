"""Views of one run: standing, monitor, rollouts, kernels, conversations, logs."""
