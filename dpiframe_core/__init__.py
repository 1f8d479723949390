"""The DPIFrame engine: model specs, bundles, lowering, and the engine that scores with them.

Names are imported when they are first used: features, specs and opening a bundle need no torch,
which takes seconds to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpiframe_core.bundle.reading import Bundle, open_bundle
    from dpiframe_core.bundle.writing import save_bundle
    from dpiframe_core.engine.engine import Engine
    from dpiframe_core.engine.loading import load_engine
    from dpiframe_core.errors import BadIdError, BundleError, ModelImportError, SpecError
    from dpiframe_core.frontend.importing import from_torch
    from dpiframe_core.frontend.pt2.archive import read_archive
    from dpiframe_core.model.fields import FieldSpec
    from dpiframe_core.model.spec import ModelSpec
    from dpiframe_core.model.torch_module import CTRModel

_MODULES = {
    "BadIdError": "errors",
    "Bundle": "bundle.reading",
    "BundleError": "errors",
    "CTRModel": "model.torch_module",
    "Engine": "engine.engine",
    "FieldSpec": "model.fields",
    "ModelImportError": "errors",
    "ModelSpec": "model.spec",
    "SpecError": "errors",
    "from_torch": "frontend.importing",
    "load_engine": "engine.loading",
    "open_bundle": "bundle.reading",
    "read_archive": "frontend.pt2.archive",
    "save_bundle": "bundle.writing",
}

__all__ = [
    "BadIdError",
    "Bundle",
    "BundleError",
    "CTRModel",
    "Engine",
    "FieldSpec",
    "ModelImportError",
    "ModelSpec",
    "SpecError",
    "from_torch",
    "load_engine",
    "open_bundle",
    "read_archive",
    "save_bundle",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value  # the next use finds it at once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
