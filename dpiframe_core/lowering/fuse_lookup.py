"""Pass: the lookup of embeddings also makes the FM term and the wide sum, in one pass.

The embedding rows are in registers while they are copied out, so the FM term needs no memory
traffic of its own, and the wide sum none beyond its weights.
"""

from __future__ import annotations

from dataclasses import replace

from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import FM, Lookup, Slot, Step


def fuse_lookup(program: Program) -> Program:
    """Fuse into the first embedding lookup what reads the same fields.

    The fused step stands where the first of them stood: it reads nothing but the ids.
    """
    host = next((s for s in program.steps if isinstance(s, Lookup) and s.out), None)
    if host is None:
        return program
    fused, gone = host, set()
    for step in program.steps:
        merged = _with(fused, step)
        if merged is not None:
            fused = merged
            gone.add(step.name)
    first = min(i for i, s in enumerate(program.steps) if s is host or s.name in gone)
    steps = [s for s in program.steps if s is not host and s.name not in gone]
    steps.insert(first, fused)
    return program.changed(steps=tuple(steps))


def _with(host: Lookup, step: Step) -> Lookup | None:
    """The host doing the step's work too, or None where it cannot."""
    if isinstance(step, Lookup) and step.out is None and host.wide_out is None:
        wide = {slot.field: slot.wide for slot in step.slots}
        fields = [slot.field for slot in host.slots]
        if len(set(fields)) != len(fields) or not set(wide) <= set(fields):
            return None
        slots = tuple(replace(slot, wide=wide.get(slot.field)) for slot in host.slots)
        return replace(host, slots=slots, wide_out=step.wide_out)
    if isinstance(step, FM) and step.xs == (host.out,) and host.fm_out is None:
        slots = tuple(_in_fm(slot) for slot in host.slots)
        return replace(host, slots=slots, fm_out=step.out)
    return None


def _in_fm(slot: Slot) -> Slot:
    return replace(slot, in_fm=True)
