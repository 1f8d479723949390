"""Sharing a cluster out between readers and scorers."""

from __future__ import annotations

from typing import Any

import pytest
from job_cases import job_keys

from pipeline.config import JobConfig
from pipeline.errors import ConfigError
from pipeline.scoring.cluster import running_cluster, share_out, store_bytes


def config(**keys: Any) -> JobConfig:
    from pathlib import Path

    return JobConfig.model_validate(job_keys(Path("/nowhere"), threads=None) | keys)


@pytest.mark.parametrize("cpus", [1, 2, 3, 4, 7, 8, 16, 19, 64, 111])
def test_scorers_and_readers_fit_and_differ(cpus: int) -> None:
    shares = share_out(config(), cpus, 0, has_cuda=False)

    assert shares.device == "cpu"
    assert shares.scorers * shares.scorer_cpus + shares.read_cpus <= cpus
    assert shares.scorer_cpus != shares.read_cpus
    assert shares.scorers * shares.threads <= cpus


@pytest.mark.parametrize("gpus", [1, 2, 7])
def test_one_scorer_a_gpu(gpus: int) -> None:
    shares = share_out(config(), 16, gpus, has_cuda=True)

    assert (shares.scorers, shares.scorer_gpus, shares.device) == (gpus, 1, "cuda")


def test_without_a_cuda_engine_the_cpu_scores() -> None:
    assert share_out(config(), 16, 1, has_cuda=False).device == "cpu"


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"device": "cuda"}, "0 GPUs"),
        ({"num_scorers": 111}, "num_scorers is 111"),
    ],
)
def test_what_the_cluster_has_not_is_a_config_error(keys: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        share_out(config(**keys), 2, 0, has_cuda=True)


def test_the_store_is_bounded() -> None:
    assert store_bytes(1) == 256 << 20
    assert store_bytes(1 << 50) < 1 << 45


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "localhost:99999"])
def test_a_cluster_that_does_not_answer_is_told_at_once(address: str) -> None:
    with pytest.raises(ConnectionError, match="nothing answers there"):
        running_cluster(address)
