"""One Lookup of a program on the CPU, through the compiled multi-table lookup."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from dpiframe_core import _core
from dpiframe_core.engine.host_inputs import Columns
from dpiframe_core.program import steps as p
from dpiframe_core.program.program import Program
from dpiframe_core.program.views import View

HUGE_TABLE_BYTES = 2**21  # one huge page


class FastTables:
    """An engine's embedding tables by name: its weights as float32 arrays, of which large ones are
    copied to huge pages, where lookups are twice as fast, once for all lookups of a table.
    """

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        self._weights = weights
        self._copies: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        weight = self._weights[name]
        if weight.nbytes < HUGE_TABLE_BYTES:
            return weight
        if name not in self._copies:
            self._copies[name] = _core.empty_table(*weight.shape)
            self._copies[name][:] = weight
        return self._copies[name]


class CompiledLookup:
    """A step with its tables."""

    def __init__(self, step: p.Lookup, program: Program, tables: FastTables, threads: int) -> None:
        self.step, self.num_fields = step, len(program.field_names)
        self.fields = [slot.field for slot in step.slots]
        self.columns = sum(max(slot.dim, 1) for slot in step.slots)
        made = []
        for i, slot in enumerate(step.slots):
            wide = tables[slot.wide].reshape(-1) if slot.wide else None
            # A wide weight without an embedding is a table of width 1 into a scratch column.
            table = tables[slot.table or slot.wide or ""]
            made.append(
                _core.LookupField(
                    table,
                    slot.column if slot.table else i,
                    wide,
                    slot.in_fm,
                    program.oov_rows[slot.field],
                )
            )
        self.lookup = _core.MultiTableLookup(made, threads)

    def run(self, ids: Columns, array: Callable[[View], np.ndarray], use_oov: bool) -> np.ndarray:
        """Look up into what `array` gives for the step's views; returns the counts [F] of ids
        outside their tables.
        """
        out, fm, wide = (
            None if view is None else array(view)
            for view in (self.step.out, self.step.fm_out, self.step.wide_out)
        )
        if out is None:
            out = np.empty((len(ids[0]), self.columns), np.float32)
        report = self.lookup.run(
            [ids[field] for field in self.fields],
            out,
            use_oov,
            None if fm is None else fm[:, 0],
            None if wide is None else wide[:, 0],
        )
        counts = np.zeros(self.num_fields, np.int64)
        counts[self.fields] = report.bad_counts
        return counts
