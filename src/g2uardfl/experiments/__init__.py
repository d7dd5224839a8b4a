"""Many runs at once: sweeps over grids, results as tables, trackers, and runs from Python."""
