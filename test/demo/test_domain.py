from __future__ import annotations

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
