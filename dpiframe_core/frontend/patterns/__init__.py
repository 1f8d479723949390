"""Patterns: what a draft computes, found again as modules that the engine has kernels for.

Each is a function of a draft in a file of its own, named for what it finds, whatever library or
style it was written in. What none of them finds stays a generic tensor operation.
"""

from __future__ import annotations

from collections.abc import Callable

from dpiframe_core.frontend.draft import Draft
from dpiframe_core.frontend.patterns.concat import find_concats
from dpiframe_core.frontend.patterns.cross import find_crosses
from dpiframe_core.frontend.patterns.dense_fields import find_dense_fields
from dpiframe_core.frontend.patterns.dots import find_dots
from dpiframe_core.frontend.patterns.fm import find_fm
from dpiframe_core.frontend.patterns.linear import find_linear, find_mlps
from dpiframe_core.frontend.patterns.logit import find_logit_sum
from dpiframe_core.frontend.patterns.lookups import gather_lookups
from dpiframe_core.frontend.patterns.maps import fuse_maps, outer_products_to_maps
from dpiframe_core.frontend.patterns.order import order_modules
from dpiframe_core.frontend.patterns.tidy import merge_joins, share_equal

Pattern = Callable[[Draft], None]

PATTERNS: tuple[Pattern, ...] = (
    share_equal,
    merge_joins,
    gather_lookups,
    find_dense_fields,
    outer_products_to_maps,
    find_dots,
    find_linear,
    find_concats,
    find_fm,
    fuse_maps,
    find_crosses,
    find_logit_sum,
    find_mlps,
    order_modules,
)


def find_patterns(draft: Draft) -> None:
    """Apply them all, in order."""
    for pattern in PATTERNS:
        pattern(draft)
        draft.drop_unused()
