"""Reader for the strings in R's lazy-load databases (.rdb).

A database is a sequence of values. Each has its size in four bytes, followed by its zlib-compressed
serialization in the big-endian XDR format of "R Internals", section 1.8 (Serialization Formats). No
code is executed, and values other than vectors of strings are rejected.
"""

import io
import struct
import zlib
from pathlib import Path

from cpc.types import UserError

#: Codes of item types (R Internals, section 1.1), in the lowest byte of an item's flags.
CHARACTER, STRINGS = 9, 16


def read_strings(path: Path) -> list[list[str]]:
    """Return the vectors of strings in a .rdb file, with "" for missing strings."""
    try:
        vectors, rest = [], path.read_bytes()
        while rest:
            stream = zlib.decompressobj()
            vectors.append(parse_strings(stream.decompress(rest[4:])))
            if not stream.eof:
                raise ValueError("it is truncated")
            rest = stream.unused_data
        return vectors
    except (OSError, ValueError, zlib.error, struct.error) as error:
        raise UserError(f"cannot read the R data {path}: {error}") from error


def parse_strings(content: bytes) -> list[str]:
    """Decode an XDR serialization of version 2 or 3 to a vector of strings."""
    stream = io.BytesIO(content)

    def take(form: str) -> tuple:
        return struct.unpack(f">{form}", stream.read(struct.calcsize(f">{form}")))

    magic, version, *_ = take("2s3i")  # the others are versions of R
    if version == 3:
        take(f"{take('i')[0]}s")  # name of the encoding
    flags, number = take("2i")
    if magic != b"X\n" or flags & 255 != STRINGS:
        raise ValueError("it is not a vector of strings")
    strings = []
    for _ in range(number):
        flags, length = take("2i")
        if flags & 255 != CHARACTER:
            raise ValueError(f"an item of R's type {flags & 255} is not a string")
        strings.append("" if length == -1 else take(f"{length}s")[0].decode("utf-8"))
    return strings
