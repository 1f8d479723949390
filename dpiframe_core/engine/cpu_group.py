"""Steps that the CPU runs together, compiled: a few samples at a time go through all of them.

What only steps of one group write and read is a group's own: it stays in a core's cache, and takes
no part of the engine's arena. Steps are told to the compiled part as operations over tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dpiframe_core import _core
from dpiframe_core.engine.native_ops import native_op, native_operand
from dpiframe_core.engine.translation import HOST_TRANSLATE, Translation
from dpiframe_core.program import steps as p
from dpiframe_core.program.program import Program
from dpiframe_core.program.tensor_ops import Operand
from dpiframe_core.program.views import DENSE, State, View

PRODUCTS = (p.Linear, p.LinearRows)  # torch's are faster


def find_groups(program: Program, order: Sequence[p.Step]) -> list[list[p.Step]]:
    """The steps in order, those that follow one another and have kernels together; any other is a
    group of its own.
    """
    groups: list[list[p.Step]] = []
    before = False
    for step in order:
        native = is_native(program, step)
        if native and before:
            groups[-1].append(step)
        else:
            groups.append([step])
        before = native
    return groups


def is_native(program: Program, step: p.Step) -> bool:
    """Whether the compiled part has kernels for the step on a CPU."""
    return compiled(program, [step], frozenset(), 1) is not None


def compiled(
    program: Program, steps: Sequence[p.Step], own: frozenset[str], threads: int
) -> CpuGroup | None:
    """The steps as a group; None where one has no kernel: torch computes it."""
    if any(type(step) not in HOST_TRANSLATE or type(step) in PRODUCTS for step in steps):
        return None
    try:
        return CpuGroup(program, steps, own, threads)
    except ValueError:
        return None


def own_buffers(program: Program, groups: Iterable[Sequence[p.Step]]) -> frozenset[str]:
    """Buffers that one group of several steps alone writes and reads."""
    users: dict[str, set[int]] = {program.output.buffer: {-1}, DENSE: {-1}}
    for i, group in enumerate(groups):
        for step in group:
            for view in (*step.reads(), *step.writes()):
                users.setdefault(view.buffer, set()).add(i if len(group) > 1 else -1)
    return frozenset(name for name, found in users.items() if len(found) == 1 and -1 not in found)


class CpuGroup:
    """Steps of a program, compiled together. `own`: buffers that nothing else needs; `loops`: the
    instruction set, empty for the best. ValueError: a step that has no kernel in the compiled part.
    """

    def __init__(
        self,
        program: Program,
        steps: Sequence[p.Step],
        own: frozenset[str],
        threads: int,
        loops: str = "",
    ) -> None:
        translation = Translation(program)
        operations = [o for step in steps for o in translation.operations(step)]
        widths: Mapping[str, int] = {**program.buffers, **translation.added}
        scratch = own | translation.added.keys()
        self.names: list[str | None] = []  # of the buffers that are given, None for others
        self._places: dict[str, int] = {}
        self._buffers: list[_core.GroupBuffer] = []
        made = []
        for operation in operations:
            places, operands = [], []
            for source, operand in zip(operation.sources, operation.operands, strict=True):
                start = 0
                if isinstance(source, View):
                    place, start = self._place(source.buffer, widths, scratch), source.start
                else:
                    place = self._add(_core.GroupBuffer(source.size, False, source), None)
                places.append(place)
                moved = Operand(operand.shape, operand.strides, operand.offset + start)
                operands.append(native_operand(moved))
            out = self._place(operation.out.buffer, widths, scratch)
            op = native_op(operation.op)
            made.append(_core.GroupStep(op, places, operands, out, operation.out.start))
        self.native = _core.TensorGroup(self._buffers, made, threads, loops)

    def run(self, state: State, batch: int) -> None:
        """Compute the steps."""
        found = [None if name is None else state.buffers[name].numpy() for name in self.names]
        self.native.run(found, batch)

    def _place(self, name: str, widths: Mapping[str, int], scratch: frozenset[str]) -> int:
        if name not in self._places:
            is_own = name in scratch
            buffer = _core.GroupBuffer(widths[name], is_own)
            self._places[name] = self._add(buffer, None if is_own else name)
        return self._places[name]

    def _add(self, buffer: _core.GroupBuffer, name: str | None) -> int:
        self._buffers.append(buffer)
        self.names.append(name)
        return len(self.names) - 1
