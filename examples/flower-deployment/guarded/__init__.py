"""A guarded Flower federation with TLS and authenticated SuperNodes."""
