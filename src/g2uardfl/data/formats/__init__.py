"""The published formats of the data sets, one a file.

Each data set has a `convert(sources, staging, progress)` that finds the published files among `sources` and writes
what is stored. Nothing here trusts its input: whatever does not fit the format raises `DataError` and names the file.
"""
