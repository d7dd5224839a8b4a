"""A Flower federation under attack, without and with the guard."""
