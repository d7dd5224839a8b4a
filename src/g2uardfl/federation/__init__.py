"""Components of real deployments, independent of the framework: reply barrier, audit, saved state, log lines."""
