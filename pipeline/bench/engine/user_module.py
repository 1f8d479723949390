"""A PyTorch module of one's own as a benchmark case: `--module file.py:Name`.

`Name` is a class that is made without arguments, or a function that returns a module. What the
module is called with, at least 2 samples, comes from `example_inputs()` of the module or of the
file: a tensor, a tuple of arguments, or a dictionary (`dpiframe_core.from_torch`).
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dpiframe_core.errors import ModelImportError
from dpiframe_core.frontend.importing import Imported, from_torch
from pipeline.errors import ConfigError

Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # args and kwargs


@dataclass(frozen=True)
class UserModule:
    """A module in evaluation mode, and what was imported of it: both have agreed on samples."""

    module: nn.Module
    imported: Imported

    def arguments(
        self, ids: np.ndarray, dense: np.ndarray, device: str, dtype: torch.dtype
    ) -> Arguments:
        """What the module is called with for ids [F, B] and dense [N, B]; floats in `dtype`."""

        def placed(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            return leaf.to(device, dtype if leaf.is_floating_point() else leaf.dtype)

        args, kwargs = pytree.tree_map(placed, self.imported.arguments(ids, dense))
        return args, kwargs


@functools.cache
def load_user_module(name: str) -> UserModule:
    """The module of a file. ConfigError: no such file, name or example inputs, or a module that
    cannot be imported.
    """
    path, _, wanted = name.rpartition(":")
    file = _run(Path(path), name)
    make = getattr(file, wanted, None)
    if not callable(make):
        raise ConfigError(f"module {name}: {path} has no class or function {wanted!r}")
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        module = make()
        if not isinstance(module, nn.Module):
            raise ConfigError(f"module {name}: {wanted}() made a {type(module).__name__}")
        examples = getattr(module, "example_inputs", getattr(file, "example_inputs", None))
        if not callable(examples):
            raise ConfigError(
                f"module {name}: neither it nor {path} has a function example_inputs(), which "
                "returns what the module is called with"
            )
        try:
            return UserModule(module.eval(), from_torch(module, examples(), name=wanted))
        except ModelImportError as error:
            raise ConfigError(f"module {name}: {error}") from None


def _run(path: Path, name: str) -> ModuleType:
    """The file, run as a Python module of its own."""
    if path.suffix != ".py" or not path.is_file():
        raise ConfigError(
            f"module {name}: give file.py:Name; there is no Python file {str(path)!r}"
        )
    spec = importlib.util.spec_from_file_location(f"dpiframe_bench_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    file = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = file  # dataclasses look themselves up there
    spec.loader.exec_module(file)
    return file
