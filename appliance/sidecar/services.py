"""What stands behind the answers: the threads that look, and the one job that writes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from appliance.sidecar.cache_jobs import Jobs
from appliance.sidecar.cache_state import CacheState
from appliance.sidecar.engine import Engine
from appliance.sidecar.gpus import GpuWatch
from appliance.sidecar.history import History

if TYPE_CHECKING:
    from collections.abc import Iterator

    from appliance.sidecar.options import Options


class Services:
    """Everything answers without the threads too, of what it knows by then."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.run_dir = options.run_dir
        self.engine = Engine(options)
        self.cache = CacheState(options)
        self.gpus = GpuWatch(options.run_dir)
        self.history = History(options.run_dir)
        self.jobs = Jobs()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keep the threads running inside; at the end none is waited for, since any may hang."""
        threads = [each.thread for each in (self.engine, self.cache, self.gpus, self.history)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            for thread in threads:
                thread.stop()
