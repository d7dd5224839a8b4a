"""What everything else stands on: errors, settings, model layouts, updates, numerics, state files."""
