from __future__ import annotations

from entrypoint.gpu_watch import GpuWatch
from tests.waiting import until


class Board:
    """GPUs that answer until they are taken away."""

    def __init__(self, *gone: int) -> None:
        self.gone = set(gone)
        self.asked = 0

    def __call__(self, gpu: int) -> None:
        self.asked += 1
        if gpu in self.gone:
            raise RuntimeError("GPU is lost")


def looks(board: Board, number: int) -> None:
    """Wait until GPUs were asked so often in all."""
    until(lambda: board.asked >= number)


def test_a_gpu_that_stops_answering_is_told_by_number_and_reason() -> None:
    board = Board()
    watch = GpuWatch((0, 2), board, every=0.01)
    looks(board, 4)
    assert watch.lost is None
    board.gone.add(2)
    looks(board, board.asked + 8)
    watch.stop()
    assert watch.lost == "GPU 2 vanished (NVML: GPU is lost)"


def test_one_failed_call_is_no_loss() -> None:
    board = Board()
    watch = GpuWatch((0,), board, every=3600)
    looks(board, 1)
    watch._look(0)
    board.gone.add(0)
    watch._look(0)
    assert watch.lost is None
    board.gone.clear()
    watch._look(0)
    board.gone.add(0)
    watch._look(0)
    assert watch.lost is None
    watch.stop()


def test_a_gpu_that_never_answered_did_not_vanish() -> None:
    board = Board(0)
    watch = GpuWatch((0,), board, every=0.01)
    looks(board, 5)
    watch.stop()
    assert watch.lost is None


def test_without_gpus_nothing_is_asked() -> None:
    assert GpuWatch(()).lost is None
