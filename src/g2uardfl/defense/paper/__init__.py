"""The four stages as the paper prints them."""
