"""The simulator: a federation on one machine, repeatable from its seed."""
