"""What every real deployment needs, whatever framework carries its messages."""
