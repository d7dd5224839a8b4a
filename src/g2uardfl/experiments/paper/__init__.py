"""The tables of the paper as data, and their reproduction.

`setting.toml` is the paper's setting. Each table is a TOML file with its grid, and a CSV file with the printed numbers.
"""
