import threading
import time

import numpy as np
import pytest

from cpc import data


def batches(step):
    time.sleep(0.002 * (step % 3))  # threads finish out of order
    return {"x": np.full(3, step)}


@pytest.mark.parametrize("num_threads", [1, 5])
def test_any_number_of_threads_gives_the_same_batches_from_any_step(num_threads):
    found = list(data.prefetch(batches, 7, 40, num_threads=num_threads))
    assert [int(b["x"][0]) for b in found] == list(range(7, 40))
    for start, stop in ((5, 5), (6, 5)):
        assert list(data.prefetch(batches, start, stop, num_threads=num_threads)) == []


def test_work_runs_ahead_but_not_further_than_the_buffer():
    made = []

    def noted(step):
        made.append(step)
        return {"x": step}

    stream = data.prefetch(noted, 0, 1000, num_threads=2)
    next(stream)
    time.sleep(0.3)
    assert 3 <= len(made) <= 12
    stream.close()


def test_closing_ends_the_threads():
    before = set(threading.enumerate())  # some of them of earlier tests, about to end
    stream = data.prefetch(batches, 0, 10_000)
    next(stream)
    started = set(threading.enumerate()) - before
    assert started
    stream.close()
    deadline = time.monotonic() + 10
    while any(thread.is_alive() for thread in started) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(thread.is_alive() for thread in started)


def test_a_mistake_in_a_thread_comes_out():
    def broken(step):
        if step == 3:
            raise ValueError("at step three")
        return {"x": step}

    with pytest.raises(ValueError, match="step three"):
        list(data.prefetch(broken, 0, 10))
