"""What each idea is worth: lowering with one of them left out."""

from __future__ import annotations

from dataclasses import replace

from dpiframe_core.lowering import Pass
from dpiframe_core.lowering.fold_batch_norm import fold_batch_norm
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Lookup, Step

# No fusion of lookup, head, siblings, concat, activations or cross layers: a kernel an operation.
NO_FUSION: tuple[Pass, ...] = (fold_batch_norm,)


def split_lookup(program: Program) -> Program:
    """One step a table instead of one for all; FM and the wide sum must not be fused into it."""
    steps: list[Step] = []
    for step in program.steps:
        if not isinstance(step, Lookup) or step.out is None or step.fm_out or step.wide_out:
            steps.append(step)
            continue
        for i, slot in enumerate(step.slots):
            out = step.out.columns(slot.column, slot.dim)
            name = f"{step.name}.{i}"
            steps.append(Lookup(name, (replace(slot, column=0),), out))
    return program.changed(steps=tuple(steps))
