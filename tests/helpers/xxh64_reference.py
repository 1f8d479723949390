"""XXH64 written out from its specification, slow and independent of the compiled one."""

from __future__ import annotations

_MASK = 2**64 - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def xxh64(data: bytes, seed: int = 0) -> int:
    """The hash of the bytes."""
    place, size = 0, len(data)
    if size >= 32:
        lanes = [seed + _P1 + _P2, seed + _P2, seed, seed - _P1]
        while place + 32 <= size:
            for i in range(4):
                lanes[i] = _round(lanes[i], _word(data, place + 8 * i, 8))
            place += 32
        mixed = sum(_rotate(v & _MASK, r) for v, r in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            mixed = ((mixed ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        mixed = seed + _P5
    mixed = (mixed + size) & _MASK
    while place + 8 <= size:
        mixed = (_rotate(mixed ^ _round(0, _word(data, place, 8)), 27) * _P1 + _P4) & _MASK
        place += 8
    if place + 4 <= size:
        mixed = (_rotate(mixed ^ (_word(data, place, 4) * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        place += 4
    for byte in data[place:]:
        mixed = _rotate(mixed ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    mixed = (mixed ^ mixed >> 33) * _P2 & _MASK
    mixed = (mixed ^ mixed >> 29) * _P3 & _MASK
    return mixed ^ mixed >> 32


def _word(data: bytes, place: int, size: int) -> int:
    return int.from_bytes(data[place : place + size], "little")


def _rotate(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _MASK


def _round(lane: int, word: int) -> int:
    return _rotate((lane + word * _P2) & _MASK, 31) * _P1 & _MASK
