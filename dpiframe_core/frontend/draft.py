"""A model while it is converted: modules in order with the weights of each, and what they read."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

from torch import Tensor

from dpiframe_core.frontend.values import Column, Fixed, Made, Value
from dpiframe_core.model.modules import Module
from dpiframe_core.program.tensor_ops import Operand, TensorOp


@dataclass(eq=False)
class Lookup:
    """A module that looks up rows of tables: entry i is the id of `columns[i]` in `tables[i]`, one
    after another in its output.
    """

    name: str
    columns: list[Column]
    tables: list[str]  # keys of Draft.tables


@dataclass(eq=False)
class Compute:
    """A module that computes: `inputs` are modules' names, `constants` numbers, read by `operands`
    in this order.
    """

    name: str
    op: TensorOp
    inputs: list[str]
    constants: list[Tensor]
    operands: list[Operand]


@dataclass(eq=False)
class Known:
    """A module of the spec that a pattern found, its weights by their names inside it, and the
    width of its output. It reads whole outputs.
    """

    module: Module
    weights: dict[str, Tensor]
    width: int

    @property
    def name(self) -> str:
        """The module's name."""
        return self.module.name

    @property
    def inputs(self) -> list[str]:
        """The modules read."""
        return list(self.module.inputs)


@dataclass(eq=False)
class Table:
    """Rows [rows, dim] that ids are looked up in."""

    weight: Tensor


AnyModule = Lookup | Compute | Known


@dataclass
class Draft:
    """Modules in order; `output` makes the logit; `tables` are what lookups look up in."""

    modules: list[AnyModule] = field(default_factory=list)
    tables: dict[str, Table] = field(default_factory=dict)
    num_dense: int = 0
    output: str = ""
    names: dict[str, int] = field(default_factory=dict)

    def name(self, wanted: str) -> str:
        """A name that no other module has."""
        count = self.names[wanted] = self.names.get(wanted, 0) + 1
        return wanted if count == 1 else f"{wanted}_{count}"

    def compute(self, op: TensorOp, values: list[Value], operands: list[Operand]) -> str:
        """Add a module over values that `operands` read, constants last; returns its name."""
        inputs = [v.source.module for v in values if isinstance(v.source, Made)]
        constants = [v.source.numbers for v in values[len(inputs) :] if isinstance(v.source, Fixed)]
        assert len(inputs) + len(constants) == len(values)
        name = self.name(op.kind)
        self.modules.append(Compute(name, op, inputs, constants, operands))
        return name

    def module(self, name: str) -> AnyModule | None:
        """The module of that name; None for the dense features."""
        return next((m for m in self.modules if m.name == name), None)

    def width(self, name: str) -> int:
        """Columns of a module's output, or of the dense features."""
        module = self.module(name)
        if module is None:
            return self.num_dense
        if isinstance(module, Lookup):
            return sum(self.tables[key].weight.shape[1] for key in module.tables)
        if isinstance(module, Compute):
            return math.prod(module.op.shape(module.operands))
        return module.width

    def readers(self, name: str) -> list[AnyModule]:
        """Modules that read the output of that name."""
        return [m for m in self.modules if not isinstance(m, Lookup) and name in m.inputs]

    def only_reader(self, name: str) -> AnyModule | None:
        """The one module that reads the output; None where there are more, or it is the logit."""
        found = self.readers(name)
        return found[0] if len(found) == 1 and name != self.output else None

    def replace(self, old: AnyModule, *new: AnyModule) -> None:
        """Other modules where one stands."""
        at = self.modules.index(old)
        self.modules[at : at + 1] = new

    def redirect(self, old: str, new: str, shift: int = 0) -> None:
        """Every reader of one output reads another's columns from `shift` on."""
        for module in self.modules:
            if isinstance(module, Compute):
                for i, name in enumerate(module.inputs):
                    if name == old:
                        operand = module.operands[i]
                        module.inputs[i] = new
                        module.operands[i] = dataclasses.replace(
                            operand, offset=operand.offset + shift
                        )
            elif isinstance(module, Known) and old in module.inputs:
                assert shift == 0
                inputs = tuple(new if name == old else name for name in module.inputs)
                module.module = module.module.model_copy(update={"inputs": inputs})
        if self.output == old:
            assert shift == 0
            self.output = new

    def drop_unused(self) -> None:
        """Remove what nothing needs."""
        needed = {self.output}
        kept = []
        for module in reversed(self.modules):
            if module.name in needed:
                kept.append(module)
                if not isinstance(module, Lookup):
                    needed.update(module.inputs)
        self.modules = kept[::-1]
