"""Planning: from a configuration and the footers of its input to units, an identity, a contract."""
