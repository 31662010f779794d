"""What the two processes of a comparison share; needs neither JAX nor torch."""

import json
import pathlib
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

#: Of both processes: freed memory is kept, and big buffers lie on big pages.
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "60000000000",
    "MALLOC_TOP_PAD_": "268435456",
    "MALLOC_ARENA_MAX": "1",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


def read_sizes() -> dict[str, Any]:
    """The sizes that the bench hands to a process as its one argument."""
    return json.loads(sys.argv[1])


def time_cases(cases: Mapping[str, Callable[[], Any]], num_calls: int) -> dict[str, float]:
    """Median seconds of each case, whose calls return when the result is there; interleaved."""
    seconds = {name: [] for name in cases}
    for call in cases.values():
        call()
        call()
    for _ in range(num_calls):
        for name, call in cases.items():
            begin = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(times) for name, times in seconds.items()}


def peak_bytes(device: Any = None) -> int:
    """Most memory that a device of JAX has given out or, where that is the host's, this process."""
    if given := device and device.memory_stats():
        return given["peak_bytes_in_use"]
    status = pathlib.Path("/proc/self/status")
    if status.exists():  # where getrusage also counts what the parent had when it forked
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
