"""R's lazy-load databases (.rdx, .rdb), as far as data of texts and numbers go.

The index is a serialised list of names with places in the .rdb; there, each value is its size, four
bytes, and a compressed serialisation. The format, XDR and big-endian, is that of "R Internals",
section 1.8 (Serialization Formats). Nothing is run: whatever is no plain data is refused.
"""

import bz2
import lzma
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from cpc.files import check_regular
from cpc.types import UserError

#: All values of a file may take so many bytes, compressed and unpacked.
MAX_BYTES = 1 << 28
#: Tells zlib to expect gzip's header.
GZIP = 31
#: Types of items, as R numbers them (R Internals, section 1.1).
SYMBOL, PAIRLIST, CHARACTER, LOGICAL, INTEGER, REAL, STRINGS, LIST = 1, 2, 9, 10, 13, 14, 16, 19
REFERENCE, NOTHING, GLOBALS = 255, 254, (241, 242, 247, 248, 251, 253)
HAS_ATTRIBUTES, HAS_TAG = 1 << 9, 1 << 10


class Vector(NamedTuple):
    """A vector of R with its attributes, such as names."""

    values: list[Any]
    attributes: dict[str, Any]


def read_lazy_data(index: Path) -> dict[str, list[Any]]:
    """Return name -> values of the vectors in a lazy-load database, given its .rdx file."""
    try:
        content = read_bytes(index.with_suffix(".rdb"))
        top = named(unserialize(inflate(zlib.decompressobj(GZIP), read_bytes(index), MAX_BYTES)))
        places = {name: place.values for name, place in named(top["variables"]).items()}
        chunks = {name: content[start : start + size] for name, (start, size) in places.items()}
        sizes = [size_of(chunk) for chunk in chunks.values()]
        if sum(sizes) > MAX_BYTES:
            raise ValueError(f"{sum(sizes):,} bytes of values, above the limit of {MAX_BYTES:,}")
        return {name: unserialize(decompress(chunk)).values for name, chunk in chunks.items()}
    except (OSError, EOFError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"cannot read the R data {index}: {error}") from error
    except (zlib.error, lzma.LZMAError, struct.error, RecursionError) as error:
        raise UserError(f"the R data {index} are damaged: {error}") from error


def named(vector: Vector) -> dict[str, Any]:
    """Return the entries of a list by their names."""
    return dict(zip(vector.attributes["names"].values, vector.values, strict=True))


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file."""
    check_regular(path)
    if (size := path.stat().st_size) > MAX_BYTES:
        raise ValueError(f"{size:,} bytes, above the limit of {MAX_BYTES:,}")
    return path.read_bytes()


def size_of(chunk: bytes) -> int:
    """Return the unpacked size that a chunk of a .rdb begins with."""
    return int(struct.unpack(">I", chunk[:4])[0])


def decompress(chunk: bytes) -> bytes:
    """Return the value in a chunk of a .rdb: size, a letter for the method unless zlib, content."""
    size = size_of(chunk)
    if chunk[4:5] == b"2":
        content = inflate(bz2.BZ2Decompressor(), chunk[5:], size)
    elif chunk[4:5] == b"Z":
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 6}]
        content = inflate(lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters), chunk[5:], size)
    else:
        content = inflate(zlib.decompressobj(), chunk[4:], size)
    if len(content) != size:
        raise ValueError(f"a value of {size:,} bytes unpacks to {len(content):,}")
    return content


def inflate(decompressor: Any, content: bytes, max_bytes: int) -> bytes:
    """Return unpacked content, of which no more than one byte beyond a limit is ever unpacked."""
    unpacked = decompressor.decompress(content, max_bytes + 1)
    if len(unpacked) > max_bytes:
        raise ValueError(f"it unpacks to more than {max_bytes:,} bytes")
    return unpacked


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
        if number < 0:
            raise ValueError(f"{number} entries")
        found = struct.unpack_from(f">{number}{kind}", self.content, self.place)
        self.place += struct.calcsize(f">{number}{kind}")
        return found

    def read_item(self) -> Any:
        (flags,) = self.take("i", 1)
        kind = flags & 255
        if kind in (NOTHING, *GLOBALS):
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
            return None if number == -1 else self.read_text(number)
        if kind in (LOGICAL, INTEGER):
            values = list(self.take("i", number))
        elif kind == REAL:
            values = list(self.take("d", number))
        elif kind in (STRINGS, LIST):
            values = [self.read_item() for _ in range(number)]
        else:
            raise ValueError(f"an item of R's type {kind} is no plain data")
        return Vector(values, self.read_item() if flags & HAS_ATTRIBUTES else {})

    def read_text(self, number: int) -> str:
        end = self.place + number
        if number < 0 or end > len(self.content):
            raise ValueError("a text is cut short")
        start, self.place = self.place, end
        return self.content[start:end].decode("utf-8")

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
