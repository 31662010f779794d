"""Batches ahead of the device: made by threads, taken in order."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import numpy as np
from jaxtyping import Int

from cpc.types import UserError

B = TypeVar("B")


def rows_of_process(
    batch_size: int, process: int, num_processes: int, what: str
) -> Int[np.ndarray, " b"]:
    """Return the rows of the global batch that a process makes."""
    if batch_size < 1:
        raise UserError(f"a batch of {batch_size} {what} holds nothing: choose at least 1")
    if batch_size % num_processes:
        raise UserError(
            f"a batch of {batch_size} does not divide among {num_processes} processes: "
            f"choose a multiple of {num_processes}"
        )
    size = batch_size // num_processes
    return np.arange(process * size, (process + 1) * size, dtype=np.int32)


def prefetch(
    batches: Callable[[int], B], start: int, stop: int, *, num_threads: int = 2, buffer: int = 4
) -> Iterator[B]:
    """`batches(start)`, ..., `batches(stop - 1)` in order, made by threads while the device works.

    `batches` is a function of the step alone, so that the state of the stream is one integer, and
    the number of threads (0: the caller's own) changes nothing but the speed. At most `buffer`
    batches are made ahead. Closing the iterator, or leaving it to be collected, ends the threads.

    >>> list(prefetch(lambda step: {"x": step}, 3, 5))
    [{'x': 3}, {'x': 4}]
    """
    if num_threads == 0:
        yield from map(batches, range(start, stop))
        return
    steps = iter(range(start, stop))
    pool = ThreadPoolExecutor(num_threads)
    try:
        ahead = deque(pool.submit(batches, step) for step in islice(steps, buffer))
        while ahead:
            batch = ahead.popleft().result()
            ahead.extend(pool.submit(batches, step) for step in islice(steps, 1))
            yield batch
    finally:  # without waiting: the batch in hand may take long
        pool.shutdown(wait=False, cancel_futures=True)
