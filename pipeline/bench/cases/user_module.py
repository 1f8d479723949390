"""A PyTorch module as a benchmark case: one's own by `--module file.py:Name`, or of the zoo.

`Name` is a class that is made without arguments, or a function that returns a module. What the
module is called with, at least 2 samples, comes from `example_inputs()` of the module or of the
file: a tensor, a tuple of arguments, or a dictionary (`dpiframe_core.from_torch`).
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dpiframe_core.errors import ModelImportError
from dpiframe_core.frontend.importing import Imported, from_torch
from pipeline.bench.cases.zoo import ZOO, Shape
from pipeline.errors import ConfigError

ZOO_ROWS = 100  # of a table of the zoo while it is imported, which copies the weights
Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # args and kwargs
Made = TypeVar("Made")


@dataclass(frozen=True)
class UserModule:
    """A module in evaluation mode, and what was imported of it: both have agreed on samples."""

    module: nn.Module
    imported: Imported

    def scorer(self) -> nn.Module:
        """A copy of the module, which of several outputs returns the score alone: a compiler leaves
        the rest out.
        """
        module = copy.deepcopy(self.module)
        return module if self.imported.num_outputs == 1 else _Scorer(module, self.imported)

    def arguments(
        self, ids: np.ndarray, dense: np.ndarray, device: str, dtype: torch.dtype | None
    ) -> Arguments:
        """What the module is called with for ids [F, B] and dense [N, B]; floats in `dtype`, None:
        in the examples', as always where there are ids among them, which 16 bits would round.
        """

        def placed(leaf: Any, has_ids: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            is_number = leaf.is_floating_point() and has_ids is not True
            return leaf.to(device, dtype if is_number else None)

        given = self.imported.arguments(ids, dense)
        args, kwargs = pytree.tree_map(placed, given, self.imported.with_ids)
        return args, kwargs


class _Scorer(nn.Module):
    def __init__(self, module: nn.Module, imported: Imported) -> None:
        super().__init__()
        self.module = module
        self._output = imported.output

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._output(self.module(*args, **kwargs))


@functools.cache
def load_user_module(name: str, output: str = "auto") -> UserModule:
    """The module of a file; `output` as of `from_torch`. ConfigError: no such file, name or example
    inputs, code of the file that fails, or a module that cannot be imported.
    """
    path, _, wanted = name.rpartition(":")
    if not path or not wanted:
        raise ConfigError(f"module {name}: give FILE.py:NAME, a class or function of the file")
    file = _run(Path(path), name)
    make = getattr(file, wanted, None)
    if not callable(make):
        raise ConfigError(f"module {name}: {path} has no class or function {wanted!r}")
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        module = _by_file(Path(path), f"module {name}: {wanted}()", make)
        if not isinstance(module, nn.Module):
            raise ConfigError(f"module {name}: {wanted}() made a {type(module).__name__}")
        examples = getattr(module, "example_inputs", getattr(file, "example_inputs", None))
        if not callable(examples):
            raise ConfigError(
                f"module {name}: neither it nor {path} has a function example_inputs(), which "
                "returns what the module is called with"
            )
        given = _by_file(Path(path), f"module {name}: example_inputs()", examples)
        return _imported(module, given, wanted, f"module {name}", output)


@functools.lru_cache(maxsize=4)
def load_zoo_module(
    name: str, fields: int, dense: int, dim: int, hidden: tuple[int, ...]
) -> UserModule:
    """A model of the zoo with tables of ZOO_ROWS rows. ConfigError: no such shape of it."""
    if not dense:
        raise ConfigError(f"{name}: the models of the zoo want dense features, such as 13")
    shape = Shape(fields, dim, dense, hidden, (ZOO_ROWS,) * fields)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        module = ZOO[name](shape)
        _spread(module)
        return _imported(module, module.example_inputs(), name, name)


@torch.no_grad()
def _spread(module: nn.Module) -> None:
    """Weights for ReLU (He et al., 2015): torch's own shrink the logits, and with them errors."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.normal_(std=(2 / layer.in_features) ** 0.5)


def _imported(
    module: nn.Module, examples: Any, name: str, what: str, output: str = "auto"
) -> UserModule:
    try:
        # In float64 and on the CPU; the benchmark compares on its device in its precision.
        imported = from_torch(module, examples, name=name, output=output, precisions=())
    except ModelImportError as error:
        raise ConfigError(f"{what}: {error}") from None
    return UserModule(module.eval(), imported)


def _run(path: Path, name: str) -> ModuleType:
    """The file, run as a Python module of its own, which may import what lies beside it."""
    if path.suffix != ".py" or not path.is_file():
        raise ConfigError(
            f"module {name}: give FILE.py:NAME; there is no Python file {str(path)!r}"
        )
    spec = importlib.util.spec_from_file_location(f"dpiframe_bench_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    file = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = file  # dataclasses look themselves up there
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.insert(0, folder)
    _by_file(path, f"module {name}: the file", functools.partial(spec.loader.exec_module, file))
    return file


def _by_file(path: Path, what: str, code: Callable[[], Made]) -> Made:
    """What the code of a user's file returns. ConfigError: it raises, and at which of its lines."""
    try:
        return code()
    except Exception as error:  # it raises what it likes
        if isinstance(error, SyntaxError):  # of it, or of what it imports
            text, places = error.msg, [(error.filename, error.lineno)]
        else:
            frames = traceback.extract_tb(error.__traceback__)
            own = [f.lineno for f in frames if Path(f.filename).resolve() == path.resolve()]
            text, places = str(error), [(str(path), line) for line in own]
        place = f" ({places[-1][0]}, line {places[-1][1]})" if places else ""
        raise ConfigError(f"{what} raises {type(error).__name__}: {text}{place}") from error
