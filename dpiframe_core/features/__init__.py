"""Features: from raw columns to ids and dense values, described by a schema, fitted, encoded."""

from dpiframe_core.features.datasets import avazu_schema, criteo_schema
from dpiframe_core.features.encoder import Encoded, Encoder
from dpiframe_core.features.errors import EncodeError, SchemaError
from dpiframe_core.features.fit import fit_schema
from dpiframe_core.features.schema import CategoricalFeature, DenseFeature, FeatureSchema
from dpiframe_core.features.vocabulary import vocabulary_from_tensors, vocabulary_to_tensors

__all__ = [
    "CategoricalFeature",
    "DenseFeature",
    "EncodeError",
    "Encoded",
    "Encoder",
    "FeatureSchema",
    "SchemaError",
    "avazu_schema",
    "criteo_schema",
    "fit_schema",
    "vocabulary_from_tensors",
    "vocabulary_to_tensors",
]
