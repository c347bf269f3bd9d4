"""Where a server is reached from its own machine."""

from __future__ import annotations

import pytest

from appliance.health.address import reachable, url


@pytest.mark.parametrize(
    ("host", "there"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("::", "::1"),
        ("[::]", "::1"),
        ("192.0.2.7", "192.0.2.7"),
        ("gpu.example", "gpu.example"),
        ("", "127.0.0.1"),
    ],
)
def test_an_address_to_listen_on_becomes_one_to_go_to(host: str, there: str) -> None:
    assert reachable(host) == there


def test_an_address_with_colons_stands_in_brackets_in_a_url() -> None:
    assert url("::", 8000) == "http://[::1]:8000"
    assert url("0.0.0.0", 8000, tls=True) == "https://127.0.0.1:8000"
