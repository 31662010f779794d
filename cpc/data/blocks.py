"""Checksums of the blocks of a large file, each checked when it is first read."""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
from jaxtyping import Int, UInt8, UInt32

#: A window of 20,480 samples touches one or two.
BLOCK_BYTES = 1 << 16


def sum_blocks(path: Path) -> tuple[UInt32[np.ndarray, " blocks"], int]:
    """The crc32 of each block of a file, and that of the whole."""
    sums, whole = [], 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            sums.append(zlib.crc32(block))
            whole = zlib.crc32(block, whole)
    return np.asarray(sums, "<u4"), whole


def make_block_check(
    content: UInt8[np.ndarray, " bytes"],
    sums: UInt32[np.ndarray, " blocks"],
    complain: Callable[[int], NoReturn],
) -> Callable[[Int[np.ndarray, " n"], int], None]:
    """check(begins, num_bytes): the blocks that reads of so many bytes touch are as they were.

    A block is summed once; two threads that meet in it both do, which harms nothing. `complain`
    gets the number of one that has changed.
    """
    unchecked = np.ones(len(sums), bool)

    def check(begins: np.ndarray, num_bytes: int) -> None:
        if not num_bytes:
            return
        first, last = begins // BLOCK_BYTES, (begins + num_bytes - 1) // BLOCK_BYTES
        span = np.arange(num_bytes // BLOCK_BYTES + 2)
        touched = np.minimum(first[:, None] + span, last[:, None])
        for block in np.unique(touched[unchecked[touched]]).tolist():
            part = content[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]
            if zlib.crc32(part.data) != sums[block]:
                complain(block)
            unchecked[block] = False

    return check
