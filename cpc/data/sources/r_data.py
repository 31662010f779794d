"""Reader for R's lazy-load databases (.rdx, .rdb) of strings and numbers.

The .rdx file is a serialized list of names and positions in the .rdb file, which contains the size
of each value, in four bytes, and its zlib-compressed serialization. The format is the big-endian
XDR of "R Internals", section 1.8 (Serialization Formats). No code is executed, and values other
than plain data are rejected.
"""

import io
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from cpc.types import UserError

#: Window size by which zlib expects a gzip header.
GZIP = 31
#: Codes of item types (R Internals, section 1.1).
SYMBOL, PAIRLIST, CHARACTER, LOGICAL, INTEGER, REAL, STRINGS, LIST = 1, 2, 9, 10, 13, 14, 16, 19
REFERENCE, NOTHING = 255, 254
HAS_ATTRIBUTES, HAS_TAG = 1 << 9, 1 << 10


class Vector(NamedTuple):
    """An R vector with its attributes, such as names."""

    values: list[Any]
    attributes: dict[str, Any]


def read_lazy_data(index: Path) -> dict[str, list[Any]]:
    """Return a lazy-load database's vectors by name, given the path of its .rdx file."""
    try:
        content = index.with_suffix(".rdb").read_bytes()
        top = named(unserialize(zlib.decompress(index.read_bytes(), GZIP)))
        spans = {name: span.values for name, span in named(top["variables"]).items()}
        return {
            name: unserialize(zlib.decompress(content[start + 4 : start + size])).values
            for name, (start, size) in spans.items()
        }
    except (
        *(OSError, EOFError, LookupError, TypeError, ValueError, AttributeError),
        *(zlib.error, struct.error, RecursionError),
    ) as error:
        raise UserError(f"cannot read the R data {index}: {error}") from error


def named(vector: Vector) -> dict[str, Any]:
    """Return the entries of a named R list as a dict."""
    return dict(zip(vector.attributes["names"].values, vector.values, strict=True))


def unserialize(content: bytes) -> Vector:
    """Decode an XDR serialization of version 2 or 3 to a vector."""
    if content[:2] != b"X\n":
        raise ValueError(f"it begins with {content[:2]!r}, which is not XDR")
    reader = _Reader(content[2:])
    version, *_ = reader.take("i", 3)  # the others are versions of R
    if version == 3:
        reader.take("s", *reader.take("i", 1))  # name of the encoding
    return reader.read_item()


class _Reader:
    """A reader of XDR serializations that resolves references to earlier symbols."""

    def __init__(self, content: bytes) -> None:
        self.rest, self.symbols = io.BytesIO(content), []

    def take(self, kind: str, number: int) -> tuple:
        return struct.unpack(
            f">{number}{kind}", self.rest.read(struct.calcsize(f">{number}{kind}"))
        )

    def read_item(self) -> Any:
        (flags,) = self.take("i", 1)
        kind = flags & 255
        if kind == NOTHING:
            return None
        if kind == REFERENCE:
            return self.symbols[(flags >> 8) - 1]
        if kind == SYMBOL:
            self.symbols.append(self.read_item())
            return self.symbols[-1]
        if kind == PAIRLIST:
            return self.read_pairs(flags)
        (number,) = self.take("i", 1)
        if kind == CHARACTER:
            return None if number == -1 else self.take("s", number)[0].decode("utf-8")
        if kind in (LOGICAL, INTEGER):
            values = list(self.take("i", number))
        elif kind == REAL:
            values = list(self.take("d", number))
        elif kind in (STRINGS, LIST):
            values = [self.read_item() for _ in range(number)]
        else:
            raise ValueError(f"an item of R's type {kind} is not plain data")
        return Vector(values, self.read_item() if flags & HAS_ATTRIBUTES else {})

    def read_pairs(self, flags: int) -> dict[str, Any]:
        """Return the entries of a linked list by tag, given the flags of the first entry."""
        entries = {}
        while flags & 255 == PAIRLIST:
            if flags & HAS_ATTRIBUTES:
                self.read_item()
            tag = self.read_item() if flags & HAS_TAG else ""
            entries[tag] = self.read_item()
            (flags,) = self.take("i", 1)
        if flags & 255 != NOTHING:
            raise ValueError(f"a list ends in an item of R's type {flags & 255}")
        return entries
