"""Data sets: synthetic rows of their shape, and conversion of the published files to parquet."""
