"""`appliance serve`: start the engine and the sidecar, and stay until they end."""

from entrypoint.main import SUMMARY, configure, run

__all__ = ["SUMMARY", "configure", "run"]
