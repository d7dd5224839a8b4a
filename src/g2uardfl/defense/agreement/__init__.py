"""The four stages of the default profile."""
