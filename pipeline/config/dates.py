"""Dates in a configuration: `{date}`, `{hour}` and arithmetic on them.

    placeholder = "{" ("date" | "hour") [("+" | "-") number ("d" | "h")] [":" format] "}"
    format      = any text with %Y %m %d %H %j %y %G %V %%, without braces

`{date}` is `{date:%Y-%m-%d}`, `{hour}` is `{hour:%H}`. Days are those of the calendar; hours are
hours that pass, counted from the begin of the hour, the first one where the clock shows it twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from difflib import get_close_matches
from typing import Any
from zoneinfo import ZoneInfo

# Keys whose values may hold placeholders.
DATED_KEYS = ("bundle", "bundles", "input", "output", "partition_base", "run_name", "where")
WORDS = ("today", "yesterday", "last-hour")

_MOMENT = re.compile(r"(\d{4})-(\d{2})-(\d{2})(?:T(\d{2}))?")
_BRACES = re.compile(r"\{([A-Za-z_]+)((?:[-+:][^{}]*)?)\}")
_TERM = re.compile(r"(?:([+-])(\d{1,5})([dh]))?(?::([^{}]+))?")
_CODE = re.compile(r"%(.?)", re.DOTALL)
_DEFAULTS = {"date": "%Y-%m-%d", "hour": "%H"}
_MISSPELT = {"day", "days", "ds", "dt"}


@dataclass(frozen=True)
class Moment:
    """A day, or one of its hours, by the clock of a time zone."""

    day: date
    hour: int | None
    zone: ZoneInfo

    def __str__(self) -> str:
        """As `parse_moment` reads it: 2026-11-19, or 2026-11-19T05."""
        return self.day.isoformat() + ("" if self.hour is None else f"T{self.hour:02d}")

    @property
    def begin(self) -> datetime:
        """When it begins; for an hour that the clock shows twice, the first time."""
        return datetime(
            self.day.year, self.day.month, self.day.day, self.hour or 0, tzinfo=self.zone
        )


def time_zone(name: str) -> ZoneInfo:
    """The zone of an IANA name such as Europe/Berlin; ValueError."""
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        raise ValueError(
            f"time_zone must be a name of the IANA data base, such as UTC or Europe/Berlin, "
            f"got {name!r}"
        ) from None


def parse_moment(text: str, zone: ZoneInfo, now: datetime | None = None) -> Moment:
    """The moment that a text means: a day, an hour, or one of `WORDS`, which look at the clock.

    ValueError: another text, or an hour that the clock of the zone skips on that day.
    """
    now = (now or datetime.now(UTC)).astimezone(zone)
    if text == "last-hour":
        past = (now.astimezone(UTC) - timedelta(hours=1)).astimezone(zone)
        return Moment(past.date(), past.hour, zone)
    if text in WORDS:
        return Moment(now.date() - timedelta(days=text == "yesterday"), None, zone)
    found = _MOMENT.fullmatch(text)
    try:
        if not found:
            raise ValueError
        day = date(int(found[1]), int(found[2]), int(found[3]))
        hour = None if found[4] is None else int(found[4])
        if hour is not None and hour > 23:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"a date must look like 2026-11-19 or 2026-11-19T05, or be one of {', '.join(WORDS)}, "
            f"got {text!r}"
        ) from None
    moment = Moment(day, hour, zone)
    if hour is not None and not _exists(moment):
        raise ValueError(
            f"the hour {moment} does not exist in {zone.key}: the clocks are set forward over it"
        )
    return moment


def moments(first: Moment, last: Moment, hourly: bool) -> Iterator[Moment]:
    """Every day from `first` to `last`, both included, or every hour that the clock shows in them.

    An hour that the clock skips is not among them, one that it shows twice is there once. A `first`
    or `last` without an hour means all hours of that day.
    """
    if not hourly:
        days = (last.day - first.day).days
        yield from (Moment(first.day + timedelta(n), None, first.zone) for n in range(days + 1))
        return
    at = first.begin.astimezone(UTC)
    end = (last.day, 23 if last.hour is None else last.hour)
    before = None
    while True:
        local = at.astimezone(first.zone)
        shown = (local.date(), local.hour)
        if shown > end:
            return
        if before is None or shown > before:
            yield Moment(*shown, first.zone)
            before = shown
        at += timedelta(hours=1)


def with_dates(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a configuration with its `date` resolved and all placeholders replaced.

    ValueError: a placeholder that is none, or that asks for a date or an hour that is not given.
    """
    filled = dict(data)
    moment = None
    if filled.get("date") is not None:
        zone = time_zone(str(filled.get("time_zone") or "UTC"))
        moment = parse_moment(str(filled["date"]), zone)
        filled["date"] = str(moment)
    for key in DATED_KEYS:
        if isinstance(filled.get(key), str):
            filled[key] = fill(key, filled[key], moment)
        elif isinstance(filled.get(key), list):
            filled[key] = [
                fill(key, item, moment) if isinstance(item, str) else item for item in filled[key]
            ]
        elif isinstance(filled.get(key), dict):
            filled[key] = {
                name: fill(key, item, moment) if isinstance(item, str) else item
                for name, item in filled[key].items()
            }
    return filled


def asks_for(data: Mapping[str, Any]) -> str | None:
    """What the placeholders of a configuration need: "hour", "date", or None without any."""
    found = set()
    for key in DATED_KEYS:
        value = data.get(key)
        texts = list(value.values()) if isinstance(value, dict) else value
        for text in texts if isinstance(texts, list) else [texts]:
            if isinstance(text, str):
                places = [match for match in _BRACES.finditer(text) if _is_meant(match)]
                found |= {_needs(*_parse(key, match)) for match in places}
    return "hour" if "hour" in found else "date" if found else None


def fill(key: str, text: str, moment: Moment | None) -> str:
    """The text with its placeholders replaced; `key` is for messages. ValueError."""

    def value(match: re.Match[str]) -> str:
        if not _is_meant(match):
            return match[0]
        name, sign, number, unit, form = _parse(key, match)
        if moment is None:
            raise ValueError(f"{key} holds {match[0]}, but no date is given; say which by --date")
        if moment.hour is None and _needs(name, sign, number, unit, form) == "hour":
            raise ValueError(
                f"{key} holds {match[0]}, which needs an hour, but the date is {moment}; give one "
                f"such as {moment}T05"
            )
        return _format(_moved(moment, f"{sign}{number}", unit), form)

    return _BRACES.sub(value, text)


def _is_meant(match: re.Match[str]) -> bool:
    """Whether a text in braces is a placeholder, or looks like a misspelt one."""
    name = match[1].lower()
    return name in _MISSPELT or bool(get_close_matches(name, _DEFAULTS, 1, cutoff=0.7))


def _parse(key: str, match: re.Match[str]) -> tuple[str, str, str, str, str]:
    """Name, sign, number, unit and format of a placeholder."""
    name, rest = match[1], match[2]
    found = _TERM.fullmatch(rest)
    if name not in _DEFAULTS or not found:
        raise ValueError(
            f"{key} holds {match[0]}, which is no placeholder; those are {{date}}, {{hour}}, with "
            "arithmetic {date-1d}, {hour+2h}, with a format {date:%Y/%m/%d}"
        )
    form = found[4] or _DEFAULTS[name]
    unknown = [code for code in _CODE.findall(form) if code not in _FORMATS]
    if unknown:
        known = " ".join(f"%{code}" for code in _FORMATS)
        raise ValueError(f"{key} holds {match[0]}: %{unknown[0]} is not among {known}")
    return name, found[1] or "+", found[2] or "0", found[3] or "d", form


def _needs(name: str, sign: str, number: str, unit: str, form: str) -> str:
    hour = name == "hour" or unit == "h" or "H" in _CODE.findall(form)
    return "hour" if hour else "date"


def _moved(moment: Moment, number: str, unit: str) -> datetime:
    """The moment so many days (by the calendar) or hours (that pass) later, by the zone's clock."""
    try:
        if unit == "d":
            return moment.begin.replace(tzinfo=None) + timedelta(days=int(number))
        later = moment.begin.astimezone(UTC) + timedelta(hours=int(number))
        return later.astimezone(moment.zone)
    except OverflowError:
        raise ValueError(f"{moment} {number}{unit} is outside the years 1 to 9999") from None


def _format(at: datetime, form: str) -> str:
    return _CODE.sub(lambda code: _FORMATS[code[1]](at), form)


def _exists(moment: Moment) -> bool:
    """Whether the clock shows the hour, if only for a part of it."""
    for minute in (0, 59):
        wall = moment.begin.replace(minute=minute)
        back = wall.astimezone(UTC).astimezone(moment.zone)
        if back.replace(tzinfo=None) == wall.replace(tzinfo=None):
            return True
    return False


# Not strftime, whose result depends on the platform for years before 1000 and for other codes.
_FORMATS: dict[str, Callable[[datetime], str]] = {
    "Y": lambda at: f"{at.year:04d}",
    "m": lambda at: f"{at.month:02d}",
    "d": lambda at: f"{at.day:02d}",
    "H": lambda at: f"{at.hour:02d}",
    "j": lambda at: f"{at.timetuple().tm_yday:03d}",
    "y": lambda at: f"{at.year % 100:02d}",
    "G": lambda at: f"{at.isocalendar().year:04d}",
    "V": lambda at: f"{at.isocalendar().week:02d}",
    "%": lambda at: "%",
}
