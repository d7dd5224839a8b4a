"""What every real deployment needs, whatever framework carries its messages: barrier, audit, saved state, log lines."""
