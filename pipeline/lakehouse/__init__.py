"""Tables over files: Iceberg snapshots as input, published parts as an Iceberg table's files."""
