"""Pages with plots and tables about simulated runs and real federations."""
