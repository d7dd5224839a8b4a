"""The G²uardFL defence: attributed client graph clustering, one module of the paper a file.

A round flows through `attributes`, `relations`, `graph`, `clustering`, `scoring`, `clipping` and `elimination`, in
this order; `guard` strings them together and owns the state.
"""
