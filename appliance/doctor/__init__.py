"""Checks of this machine before and without a start. `preflight` is the quick part that `serve` runs."""

from appliance.doctor.check import Check, first_failure
from appliance.doctor.run import preflight

__all__ = ["Check", "first_failure", "preflight"]
