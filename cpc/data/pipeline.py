"""Batches ahead of the device, through Grain."""

from collections.abc import Callable, Iterator

import grain

from cpc.types import Batch


class _Steps:
    """One element is one whole batch, so that the state of the stream is one integer, the step."""

    def __init__(self, batches: Callable[[int], Batch], stop: int):
        self.batches = batches
        self.stop = stop

    def __len__(self) -> int:
        return self.stop

    def __getitem__(self, index: int) -> Batch:
        return self.batches(int(index))


def prefetch(
    batches: Callable[[int], Batch],
    start: int,
    stop: int,
    *,
    num_threads: int = 2,
    buffer: int = 4,
) -> Iterator[Batch]:
    """`batches(start)`, ..., `batches(stop - 1)` in order, made by threads while the device works.

    The number of threads changes nothing but the speed. Closing the iterator, or leaving it to be
    collected, ends the threads.

    >>> list(prefetch(lambda step: {"x": step}, 3, 5))
    [{'x': 3}, {'x': 4}]
    """
    if start >= stop:
        return
    # Grain's defaults are 16 threads and 500 batches.
    options = grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=buffer)
    iterator = iter(
        grain.MapDataset.source(_Steps(batches, stop)).to_iter_dataset(read_options=options)
    )
    try:
        iterator.set_state({"next_index": start})
        yield from iterator
    finally:
        iterator.close()
