"""R's lazy-load databases (.rdx, .rdb), as far as data of texts and numbers go.

The index is a serialised list of names with places in the .rdb; there, each value is its size, four
bytes, and a serialisation that zlib has compressed. The format, XDR and big-endian, is that of "R
Internals", section 1.8 (Serialization Formats). Nothing is run: other than plain data is refused.
"""

import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from cpc.types import UserError

#: Tells zlib to expect gzip's header.
GZIP = 31
#: Types of items, as R numbers them (R Internals, section 1.1).
SYMBOL, PAIRLIST, CHARACTER, LOGICAL, INTEGER, REAL, STRINGS, LIST = 1, 2, 9, 10, 13, 14, 16, 19
REFERENCE, NOTHING = 255, 254
HAS_ATTRIBUTES, HAS_TAG = 1 << 9, 1 << 10


class Vector(NamedTuple):
    """A vector of R with its attributes, such as names."""

    values: list[Any]
    attributes: dict[str, Any]


def read_lazy_data(index: Path) -> dict[str, list[Any]]:
    """Return name -> values of the vectors in a lazy-load database, given its .rdx file."""
    try:
        content = index.with_suffix(".rdb").read_bytes()
        top = named(unserialize(zlib.decompress(index.read_bytes(), GZIP)))
        places = {name: place.values for name, place in named(top["variables"]).items()}
        return {
            name: unserialize(zlib.decompress(content[start + 4 : start + size])).values
            for name, (start, size) in places.items()
        }
    except (
        *(OSError, EOFError, LookupError, TypeError, ValueError, AttributeError),
        *(zlib.error, struct.error, RecursionError),
    ) as error:
        raise UserError(f"cannot read the R data {index}: {error}") from error


def named(vector: Vector) -> dict[str, Any]:
    """Return the entries of a list by their names."""
    return dict(zip(vector.attributes["names"].values, vector.values, strict=True))


def unserialize(content: bytes) -> Vector:
    r"""Return the vector of a serialisation in XDR, version 2 or 3.

    >>> unserialize(b"X\n" + struct.pack(">6i", 2, 0, 0, 13, 2, 7) + struct.pack(">i", -1)).values
    [7, -1]
    """
    if content[:2] != b"X\n":
        raise ValueError(f"it begins with {content[:2]!r}, which is no XDR")
    place = 14  # after the version, that of the writer, and the least that can read it
    if struct.unpack_from(">i", content, 2)[0] == 3:
        place += 4 + struct.unpack_from(">i", content, place)[0]  # the name of an encoding
    return _Reader(content, place).read_item()


class _Reader:
    """A place in a serialisation, and the symbols so far, which later items point to."""

    def __init__(self, content: bytes, place: int) -> None:
        self.content, self.place, self.symbols = content, place, []

    def take(self, kind: str, number: int) -> tuple:
        found = struct.unpack_from(f">{number}{kind}", self.content, self.place)
        self.place += struct.calcsize(f">{number}{kind}")
        return found

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
            raise ValueError(f"an item of R's type {kind} is no plain data")
        return Vector(values, self.read_item() if flags & HAS_ATTRIBUTES else {})

    def read_pairs(self, flags: int) -> dict[str, Any]:
        """Return the entries of a linked list by their tags, given the flags of the first."""
        found = {}
        while flags & 255 == PAIRLIST:
            if flags & HAS_ATTRIBUTES:
                self.read_item()
            tag = self.read_item() if flags & HAS_TAG else ""
            found[tag] = self.read_item()
            (flags,) = self.take("i", 1)
        if flags & 255 != NOTHING:
            raise ValueError(f"a list that ends in an item of R's type {flags & 255}")
        return found
