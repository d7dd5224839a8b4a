"""The G²uardFL defence, one idea a file; `guard` strings them together and owns the state.

The paper's profile flows through `attributes`, `relations`, `graph`, `clustering`, `scoring`, `clipping` and
`elimination`, in this order; the default profile through `agreement`, `communities` and `examination`.
"""
