"""Errors of the feature layer. Both are ValueErrors: the caller can put them right."""


class SchemaError(ValueError):
    """A feature schema, or its vocabularies, that cannot be used: says which feature and why."""


class EncodeError(ValueError):
    """A column that cannot be encoded: names the column, the type found and the type expected."""
