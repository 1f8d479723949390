"""Counts and sizes as people read them."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """`1 file`, `1,000 files`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def shortened(count: int) -> str:
    """`999`, `1.2k`, `45.8M`, `3.0B`: three digits or fewer, and a letter."""
    if count < 1000:
        return str(count)
    letters = {"k": 1e3, "M": 1e6, "B": 1e9}
    letter = next((one for one, unit in letters.items() if count < 999.5 * unit), "B")
    amount = count / letters[letter]
    return f"{amount:.0f}{letter}" if amount >= 99.95 else f"{amount:.1f}{letter}"


def size(num_bytes: int) -> str:
    """`19 bytes`, `1.5 GiB`."""
    amount = float(num_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} bytes" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
