"""The G²uardFL defence: `guard` runs the four stages of a round (`stages`), and a profile chooses them (`profiles`).

`paper` and `agreement` each hold the four stages: the paper's as printed, and the default profile's.
"""
