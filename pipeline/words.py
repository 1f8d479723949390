"""Counts and sizes as people read them."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """`1 file`, `1,000 files`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def size(num_bytes: int) -> str:
    """`19 bytes`, `1.5 GiB`."""
    amount = float(num_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} bytes" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
