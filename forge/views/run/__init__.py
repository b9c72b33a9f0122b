"""What one run did: standing, monitor, rollouts, kernels, conversations, logs."""
