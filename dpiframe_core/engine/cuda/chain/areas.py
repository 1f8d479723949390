"""Where a chain's activations lie in shared memory, and what is left for its weights.

The CTAs of a cluster may share a tile, each with a part of every layer's columns; activations lie
in the memory of each of them, at the same places.

An area is a matrix of 64 samples: chunks of 64 columns, 8 KB each. It is there from the layer that
makes it to the last one that reads it. What a layer makes may lie where its x does, which all have
read by then, not where its epilogue reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dpiframe_core.engine.cuda.chain.layers import Layer
from dpiframe_core.program.views import View

ROWS = 64  # samples of a tile
CHUNK, CHUNK_BYTES = 64, 64 * 128  # columns
GROUP = 16  # columns of a wgmma step of k, and of what a warp writes at once
SHARED = 227 * 1024
BARRIERS = 512
MOST_STAGES, LEAST_STAGES, LEAST_FLIGHT = 8, 2, 32 * 1024
GOOD_FLIGHT = 80 * 1024  # bytes of stages, for which a layer may write where its x lies
LEAST_STAGE = 16 * 1024  # bytes
MOST_OWN = 256  # columns of a warpgroup: of one wgmma
DOT_BYTES, MOMENT_BYTES = ROWS * 4, ROWS * 8  # a warpgroup's: of a dot, of two sums of rows
MOST_INPUTS, MOST_LAYERS = 4, 12  # csrc/kernels/chain/chain_params.h


@dataclass(frozen=True)
class Area:
    """`view`: the columns that lie there; `first`, `last`: layers (an input's first is -1);
    `last_read`: the last layer whose epilogue reads it.
    """

    view: View
    first: int
    last: int
    last_read: int
    offset: int = 0

    @property
    def chunks(self) -> int:
        return -(-self.view.width // CHUNK)

    @property
    def end(self) -> int:
        return self.offset + self.chunks * CHUNK_BYTES


@dataclass(frozen=True)
class Areas:
    """`inputs` are loaded, `own` made by the layers. All in bytes from the first area's begin.
    `ctas` share a tile; `dots`, `moments`: layers with a head's dot, with sums of rows.
    """

    inputs: tuple[Area, ...]
    own: tuple[Area, ...]
    stage_bytes: int
    stages: int
    ctas: int = 1
    dots: int = 0
    moments: int = 0

    @property
    def stages_at(self) -> int:
        return max(area.end for area in (*self.inputs, *self.own))

    @property
    def barriers_at(self) -> int:
        return self.stages_at + self.stages * self.stage_bytes

    @property
    def dots_at(self) -> int:
        return self.barriers_at + BARRIERS

    @property
    def moments_at(self) -> int:
        return self.dots_at + 2 * self.ctas * self.dots * DOT_BYTES

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA; 1,024 bytes to align it."""
        return 1024 + self.moments_at + 2 * self.ctas * self.moments * MOMENT_BYTES

    def read(self, view: View, epilogue: bool = False) -> Area:
        """Where a view that is read lies."""
        areas = (*self.inputs, *self.own)
        return next(a for a in areas if _shares(a.view, view, epilogue))

    def written(self, view: View) -> Area:
        """Where a view that is written lies."""
        return next(a for a in self.own if a.view.contains(view))

    def is_in_place(self, layer: int, out: View) -> bool:
        """Whether what the layer makes lies where its x does."""
        area = self.written(out)
        others = (a for a in (*self.inputs, *self.own) if a != area)
        return area.first == layer and any(a.last == layer and _meet(a, area) for a in others)

    @property
    def inputs_free(self) -> int:
        """The layer after which nothing reads or writes where the inputs lie."""
        areas = (*self.inputs, *self.own)
        return max(a.last for a in areas if any(_meet(a, i) for i in self.inputs))


def own_columns(n: int, ctas: int = 1) -> int:
    """Columns of one of the two warpgroups of each CTA: whole groups of 16."""
    return -(-n // (GROUP * 2 * ctas)) * GROUP


def place_areas(layers: Sequence[Layer], widths: Mapping[str, int], ctas: int = 1) -> Areas | None:
    """None where the chain does not fit. `widths`: of the program's buffers. CTAs that share a tile
    would have to meet before a layer writes where its x lies, so it rather does not.
    """
    most = max(own_columns(x.n, ctas) for x in layers)
    if len(layers) > MOST_LAYERS or most > MOST_OWN or not _all_write(layers, ctas):
        return None
    made = {x.out.buffer for x in layers if x.out}
    found = _areas(layers, widths, made)
    if found is None:
        return None
    apart = _placed(layers, found, ctas, in_place=False) if ctas > 1 else None
    if apart and apart.stages * apart.stage_bytes >= GOOD_FLIGHT:
        return apart
    return _placed(layers, found, ctas, in_place=True)


def _all_write(layers: Sequence[Layer], ctas: int) -> bool:
    """Whether each CTA writes columns of each layer but the last for all others, which wait for
    these: so none is more than a layer ahead of another one.
    """
    return ctas == 1 or all(
        layer.out and (ctas - 1) * 2 * own_columns(layer.n, ctas) < layer.n for layer in layers[:-1]
    )


def _placed(
    layers: Sequence[Layer], found: Sequence[Area], ctas: int, in_place: bool
) -> Areas | None:
    placed: list[Area] = []
    for area in sorted(found, key=lambda a: a.first):
        together = (p for p in placed if _together(p, area, in_place))
        others = sorted(together, key=lambda p: p.offset)
        offset = 0
        for other in others:
            if offset + area.chunks * CHUNK_BYTES <= other.offset:
                break
            offset = max(offset, other.end)
        placed.append(replace(area, offset=offset))
    inputs = tuple(a for a in placed if a.first < 0)
    own = tuple(a for a in placed if a.first >= 0)
    stage = max(LEAST_STAGE, 256 * max(own_columns(x.n, ctas) for x in layers))
    dots, moments = sum(x.dot is not None for x in layers), sum(x.sums is not None for x in layers)
    areas = Areas(inputs, own, stage, 0, ctas, dots, moments)
    stages = min(MOST_STAGES, (SHARED - areas.shared_bytes) // stage)
    if stages < LEAST_STAGES or stages * stage < LEAST_FLIGHT or len(inputs) > MOST_INPUTS:
        return None
    return replace(areas, stages=stages)


def _together(a: Area, b: Area, in_place: bool = True) -> bool:
    """Whether both are there at a time; under `in_place` the one made by a layer may lie where its
    x does.
    """
    early, late = (a, b) if a.first <= b.first else (b, a)
    if late.first < 0:
        return True
    last = early.last if in_place else early.last + 1
    return last > late.first or early.last_read >= late.first


def _meet(a: Area, b: Area) -> bool:
    """Whether they lie in the same memory."""
    return a.offset < b.end and b.offset < a.end


def _areas(layers: Sequence[Layer], widths: Mapping[str, int], made: set[str]) -> list[Area] | None:
    found: dict[View, Area] = {}

    def read(view: View, layer: int, epilogue: bool) -> bool:
        whole = View(view.buffer, 0, widths[view.buffer])
        if view.buffer in made:
            holder = found.get(whole)
            if holder is None:
                return False
        else:
            holder = next((a for a in found.values() if _shares(a.view, view, epilogue)), None)
            if holder is None:
                if view.start % 8 or whole.width == 1:
                    return False  # TMA wants rows at multiples of 16 bytes
                holder = Area(view, -1, layer, -1)
        last_read = layer if epilogue else holder.last_read
        found[holder.view] = replace(holder, last=layer, last_read=last_read)
        return True

    # The widest inputs first: others may be parts of them.
    outside = [x.x for x in layers if x.x.buffer not in made]
    for view in sorted(outside, key=lambda v: -v.width):
        if not read(view, -1, False):
            return None
    for i, layer in enumerate(layers):
        inside = layer.x.buffer in made
        ends = layer.x.start + layer.x.width
        if inside and (layer.x.start % GROUP or (ends % GROUP and ends != widths[layer.x.buffer])):
            return None
        if not read(layer.x, i, False):
            return None
        for operand in layer.operands:
            if operand.begin % 4 or not read(operand.view, i, True):
                return None
            if not any(_shares(a.view, operand.view, True) for a in found.values()):
                return None
        if layer.out and layer.out.overlaps(layer.x):
            return None  # a warpgroup would write where the other one still multiplies
        if layer.out:
            ends = layer.out.start + layer.n
            whole = View(layer.out.buffer, 0, widths[layer.out.buffer])
            if layer.out.start % GROUP or (layer.n % GROUP and ends != whole.width):
                return None
            area = found.get(whole, Area(whole, i, i, -1))
            found[whole] = replace(area, last=max(area.last, i))
    return list(found.values())


def _shares(area: View, view: View, epilogue: bool) -> bool:
    """Whether the view can be read where that area lies."""
    start = view.start - area.start
    if not area.contains(view) or start % (4 if epilogue else GROUP):
        return False
    return epilogue or view.width % GROUP == 0 or start + view.width == area.width
