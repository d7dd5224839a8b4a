"""Local training of a round's clients and the engines that run it."""
