"""The simulator: a whole federation on one machine, reproducible from its seed."""
