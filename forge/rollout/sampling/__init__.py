"""Which problem is played next: uniform, by level, or by what still teaches. Called by the
producer; pure, no clock, imports only records."""
