from __future__ import annotations

import os

import pytest

from flashrt_ros.demo import domain
from flashrt_ros.demo.waiting import ScenarioError


def test_two_at_once_get_different_domains(ros_domain_id: int) -> None:
    with domain.own_domain() as first, domain.own_domain() as second:
        assert first != second
        assert ros_domain_id not in (first, second)
        assert {first, second} <= set(domain.DOMAINS)


def test_a_domain_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with domain.own_domain() as found:
        monkeypatch.setattr(domain, "DOMAINS", [found])
        with pytest.raises(ScenarioError, match="ROS_DOMAIN_ID"), domain.own_domain():
            pass
    with domain.own_domain() as again:
        assert again == found


def test_a_domain_stands_in_the_environment_until_it_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE"):
        monkeypatch.delenv(name)
    with domain.ros_domain():
        assert int(os.environ["ROS_DOMAIN_ID"]) in domain.DOMAINS
        assert os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "LOCALHOST"
    assert "ROS_DOMAIN_ID" not in os.environ
    assert "ROS_AUTOMATIC_DISCOVERY_RANGE" not in os.environ


def test_a_domain_that_is_named_already_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", "7")
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "SUBNET")
    for _ in range(2):
        with domain.ros_domain():
            assert os.environ["ROS_DOMAIN_ID"] == "7"
            assert os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "SUBNET"
