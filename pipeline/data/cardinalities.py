"""Facts about the two public data sets: distinct values, missing values, typical counts.

Distinct values are counted in the whole training file with no frequency cut (Criteo Kaggle:
45,840,617 rows, as listed by facebookresearch/dlrm and HugeCTR's peers; Avazu: 40,428,967 rows,
as listed by PKU-DAIR/Hetu). Shares of missing values and typical counts are rounded measurements
on the head of the training file.
"""

from __future__ import annotations

from typing import NamedTuple

CRITEO_CARDINALITIES = {
    "C1": 1460,
    "C2": 583,
    "C3": 10131227,
    "C4": 2202608,
    "C5": 305,
    "C6": 24,
    "C7": 12517,
    "C8": 633,
    "C9": 3,
    "C10": 93145,
    "C11": 5683,
    "C12": 8351593,
    "C13": 3194,
    "C14": 27,
    "C15": 14992,
    "C16": 5461306,
    "C17": 10,
    "C18": 5652,
    "C19": 2173,
    "C20": 4,
    "C21": 7046547,
    "C22": 18,
    "C23": 15,
    "C24": 286181,
    "C25": 105,
    "C26": 142572,
}

AVAZU_CARDINALITIES = {
    "hour": 240,
    "C1": 7,
    "banner_pos": 7,
    "site_id": 4737,
    "site_domain": 7745,
    "site_category": 26,
    "app_id": 8552,
    "app_domain": 559,
    "app_category": 36,
    "device_id": 2686408,
    "device_ip": 6729486,
    "device_model": 8251,
    "device_type": 5,
    "device_conn_type": 4,
    "C14": 2626,
    "C15": 8,
    "C16": 9,
    "C17": 435,
    "C18": 4,
    "C19": 68,
    "C20": 172,
    "C21": 60,
}

# Shares of missing values; fields that are not named are never missing.
CRITEO_MISSING = {
    **{"I1": 0.45, "I3": 0.2, "I4": 0.2, "I5": 0.05, "I6": 0.25, "I7": 0.05, "I8": 0.001},
    **{"I9": 0.05, "I10": 0.45, "I11": 0.05, "I12": 0.78, "I13": 0.2},
    **dict.fromkeys(("C3", "C4", "C12", "C16", "C21", "C24"), 0.033),
    **dict.fromkeys(("C19", "C20", "C25", "C26"), 0.45),
    **{"C6": 0.13, "C22": 0.8},
}
# The published Avazu rows have no missing value; these shares are here to have some.
AVAZU_MISSING = dict.fromkeys(("device_id", "device_ip", "device_model", "C14", "C17"), 0.005)


class Counts(NamedTuple):
    """The distribution of an integer feature: log-normal, with a share of negative values."""

    median: float
    ninth_decile: float
    negative: float = 0.0


CRITEO_COUNTS = {
    "I1": Counts(1, 8),
    "I2": Counts(4, 200, negative=0.1),
    "I3": Counts(7, 51),
    "I4": Counts(4, 20),
    "I5": Counts(2800, 32000),
    "I6": Counts(41, 340),
    "I7": Counts(3, 30),
    "I8": Counts(7, 34),
    "I9": Counts(42, 310),
    "I10": Counts(0.4, 1.5),
    "I11": Counts(1, 5),
    "I12": Counts(0.3, 2),
    "I13": Counts(5, 27),
}

# Share of rows with a click.
CLICK_RATES = {"criteo": 0.256, "avazu": 0.17}
