"""The published formats of the data sets, one per file.

Each module has a function `convert(sources, staging, progress)`, which finds the published files among `sources` and
writes the stored files. Input is not trusted: a file that does not match its format raises a `DataError` that names it.
"""
