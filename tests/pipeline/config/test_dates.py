from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.config.dates import Moment, fill, moments, parse_moment, time_zone
from pipeline.config.job import JobConfig, load_config
from pipeline.errors import ConfigError

BERLIN, UTC_ZONE = time_zone("Europe/Berlin"), time_zone("UTC")
SMALL = "bundle: b\ninput: in/{date}\noutput: out/{date}\n"


def moment(text: str, zone: str = "Europe/Berlin") -> Moment:
    return parse_moment(text, time_zone(zone))


@pytest.mark.parametrize(
    ("text", "date", "expected"),
    [
        ("{date}/{hour}", "2026-11-19T05", "2026-11-19/05"),
        ("{date-1d}", "2026-03-01", "2026-02-28"),
        ("{date+1d}", "2024-02-28", "2024-02-29"),
        ("{date+0d:%Y/%m/%d}", "2026-11-19", "2026/11/19"),
        ("{date:%j %y %G-W%V %%}", "2027-01-01", "001 27 2026-W53 %"),
        ("{date-6h} {hour-6h}", "2026-11-19T05", "2026-11-18 23"),
        ("{date:%Y%m%d%H}", "2026-11-19T05", "2026111905"),
        ("{hour+1d}", "2026-11-19T05", "05"),
        ("{0} {} {a,b} {1a}", "2026-11-19", "{0} {} {a,b} {1a}"),
        # Clocks are set back at 03:00 of October 25: one hour before 03 is the second 02.
        ("{hour-1h} {hour-2h} {hour-3h}", "2026-10-25T03", "02 02 01"),
        ("{hour+1h} {hour+2h}", "2026-10-25T02", "02 03"),
        # Clocks are set forward from 02:00 to 03:00 on March 29.
        ("{hour-1h}", "2026-03-29T03", "01"),
    ],
)
def test_placeholders(text: str, date: str, expected: str) -> None:
    assert fill("input", text, moment(date)) == expected


@pytest.mark.parametrize(
    ("text", "date", "problem"),
    [
        ("{dates}", "2026-11-19", "{dates}, which is no placeholder"),
        ("{Date}", "2026-11-19", "{Date}, which is no placeholder"),
        ("{date-1}", "2026-11-19", "{date-1}, which is no placeholder"),
        ("{date-1d-1h}", "2026-11-19", "which is no placeholder"),
        ("{date:%Q}", "2026-11-19", "%Q is not among"),
        ("{date:%Y%}", "2026-11-19", "% is not among"),
        ("{hour}", "2026-11-19", "needs an hour"),
        ("{date-1h}", "2026-11-19", "needs an hour"),
        ("{date:%H}", "2026-11-19", "needs an hour"),
        ("{date-99999d}{date-99999d}", "0001-01-01", "outside the years"),
    ],
)
def test_what_is_no_placeholder(text: str, date: str, problem: str) -> None:
    with pytest.raises(ValueError, match=r"^input holds|outside") as caught:
        fill("input", text, moment(date))
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "text", ["2026-02-29", "26-11-19", "2026-11-19T24", "2026-11-19T5", "now", "", "2026-11-19 05"]
)
def test_what_is_no_date(text: str) -> None:
    with pytest.raises(ValueError, match=r"must look like 2026-11-19"):
        moment(text)


def test_words_look_at_the_clock_of_the_zone() -> None:
    now = datetime(2026, 11, 19, 23, 30, tzinfo=UTC)  # half past midnight in Berlin
    said = {word: str(parse_moment(word, BERLIN, now)) for word in ("today", "yesterday")}
    assert said == {"today": "2026-11-20", "yesterday": "2026-11-19"}
    assert str(parse_moment("last-hour", BERLIN, now)) == "2026-11-19T23"
    assert str(parse_moment("today", UTC_ZONE, now)) == "2026-11-19"


def test_an_hour_that_the_clock_skips_is_refused() -> None:
    with pytest.raises(ValueError, match="2026-03-29T02 does not exist in Europe/Berlin"):
        moment("2026-03-29T02")
    assert moment("2026-10-25T02").hour == 2  # twice, and one hour all the same
    assert moment("2026-10-04T02", "Australia/Lord_Howe").hour == 2  # half of it is there


@pytest.mark.parametrize(
    ("zone", "day", "skipped", "hours"),
    [
        ("UTC", "2026-03-29", None, 24),
        ("Europe/Berlin", "2026-03-29", 2, 23),
        ("Europe/Berlin", "2026-10-25", None, 24),
        ("Asia/Kolkata", "2026-03-29", None, 24),
        ("Australia/Lord_Howe", "2026-04-05", None, 24),
        ("Australia/Lord_Howe", "2026-10-04", None, 24),
        ("America/Sao_Paulo", "2018-11-04", 0, 23),  # midnight itself is skipped
    ],
)
def test_hours_of_a_day(zone: str, day: str, skipped: int | None, hours: int) -> None:
    found = [m.hour for m in moments(moment(day, zone), moment(day, zone), hourly=True)]
    assert found == [hour for hour in range(24) if hour != skipped]
    assert len(found) == hours
    assert all(str(moment(f"{day}T{hour:02d}", zone)) for hour in found)


def test_days_and_hours_in_between() -> None:
    days = [str(m) for m in moments(moment("2026-02-27"), moment("2026-03-01"), hourly=False)]
    assert days == ["2026-02-27", "2026-02-28", "2026-03-01"]
    hours = moments(moment("2026-02-28T22"), moment("2026-03-01T01"), hourly=True)
    assert [str(m)[-2:] for m in hours] == ["22", "23", "00", "01"]


def load(folder: Path, text: str, date: str | None = None, *overrides: str) -> JobConfig:
    path = folder / "job.yaml"
    path.write_text(text)
    return load_config(path, overrides, date)


def test_the_date_fills_in_the_keys_and_stays(tmp_path: Path) -> None:
    text = SMALL.replace("in/{date}", "['in/{date}', 'in/{date-1d}']") + "run_name: r {date:%d}\n"
    config = load(tmp_path, text, "2026-11-01")
    assert config.input == ["in/2026-11-01", "in/2026-10-31"]
    assert (config.output, config.run_name, config.date) == ("out/2026-11-01", "r 01", "2026-11-01")
    assert JobConfig.model_validate(config.model_dump()) == config


def test_an_override_may_hold_placeholders(tmp_path: Path) -> None:
    config = load(tmp_path, SMALL, "2026-11-01T04", "output=o/{date}-{hour}")
    assert config.output == "o/2026-11-01-04"


@pytest.mark.parametrize(
    ("text", "date", "problem"),
    [
        (SMALL, None, "input holds {date}, but no date is given; say which by --date"),
        ("bundle: b\ninput: i\noutput: o\n", "2026-11-01", "every date would be the same job"),
        (SMALL, "2026-11-01T04", "every hour of a day would be the same job"),
        (SMALL, "last-hour", "every hour of a day would be the same job"),
        (SMALL, "soon", "a date must look like 2026-11-19"),
        (SMALL + "time_zone: Mars/Base\n", "2026-11-01", "'Mars/Base'"),
        (SMALL + "wait_for: later\n", "2026-11-01", "wait_for must be success, or quiet"),
        (SMALL + "deadline: 5 hours\n", "2026-11-01", "deadline must be a duration"),
    ],
)
def test_dates_and_placeholders_go_together(
    tmp_path: Path, text: str, date: str | None, problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, date)
    assert problem in str(caught.value)
