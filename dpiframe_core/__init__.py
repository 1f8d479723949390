"""The DPIFrame engine: model specs, bundles, lowering, and the engine that scores with them."""

from dpiframe_core.bundle import Bundle, open_bundle, save_bundle
from dpiframe_core.engine import Engine
from dpiframe_core.errors import BadIdError, BundleError, SpecError
from dpiframe_core.loading import load_engine
from dpiframe_core.spec import FieldSpec, ModelSpec
from dpiframe_core.torch_model import CTRModel

__all__ = [
    "BadIdError",
    "Bundle",
    "BundleError",
    "CTRModel",
    "Engine",
    "FieldSpec",
    "ModelSpec",
    "SpecError",
    "load_engine",
    "open_bundle",
    "save_bundle",
]
