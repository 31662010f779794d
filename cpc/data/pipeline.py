"""Batches that are prepared by threads ahead of the device, in order."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import numpy as np
from jaxtyping import Int

from cpc.types import UserError

B = TypeVar("B")
#: Number of batches that are prepared ahead.
BUFFER = 4


def rows_of_process(
    batch_size: int, process: int, num_processes: int, what: str
) -> Int[np.ndarray, " b"]:
    """Return the indices of the global batch's rows that one process prepares."""
    if batch_size < 1:
        raise UserError(f"a batch of {batch_size} {what} is empty: choose at least 1")
    if batch_size % num_processes:
        raise UserError(
            f"batch size {batch_size} is not divisible by {num_processes} processes: "
            f"choose a multiple of {num_processes}"
        )
    size = batch_size // num_processes
    return np.arange(process * size, (process + 1) * size, dtype=np.int32)


def prefetch(
    batches: Callable[[int], B], start: int, stop: int, *, num_threads: int = 2
) -> Iterator[B]:
    """Yield `batches(start)`, ..., `batches(stop - 1)`, prepared by threads ahead of time.

    `batches` depends only on the step, so the step is the stream's whole state, and `num_threads`
    affects only the speed. If it is 0, batches are prepared in the caller's thread. At most
    `BUFFER` batches are prepared ahead. Closing or garbage-collecting the iterator ends the
    threads.

    >>> list(prefetch(lambda step: {"x": step}, 3, 5))
    [{'x': 3}, {'x': 4}]
    """
    if num_threads == 0:
        yield from map(batches, range(start, stop))
        return
    steps = iter(range(start, stop))
    pool = ThreadPoolExecutor(num_threads)
    try:
        ahead = deque(pool.submit(batches, step) for step in islice(steps, BUFFER))
        while ahead:
            batch = ahead.popleft().result()
            ahead.extend(pool.submit(batches, step) for step in islice(steps, 1))
            yield batch
    finally:  # do not wait, since the current batch may take long
        pool.shutdown(wait=False, cancel_futures=True)
