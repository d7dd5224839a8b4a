"""The bottom layer of the package: errors, settings, model layouts, updates, numerics, threads and state files."""
