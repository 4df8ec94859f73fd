"""Why a bench gives no figures; imports without torch."""

from __future__ import annotations


class WrongResultError(Exception):
    """What was about to be timed gives another result than it should."""


class BenchError(Exception):
    """A bench could not go on; says what it waited for or missed."""
