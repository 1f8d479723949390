"""The report of an output: one HTML page that needs no network."""
