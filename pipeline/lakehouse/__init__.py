"""Tables over files (Iceberg, Delta): a version's files as input, published parts as files."""
