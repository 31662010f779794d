"""Sound of a file that libsndfile does not read, and does not mention either."""

import mmap
import re
from pathlib import Path

#: kbit/s of layer III, by MPEG version 1 or not, and the number in a frame's header.
KBITS = (
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
)
#: Of version 1; version 2 has a half, and 2.5 a quarter of it.
RATES_HZ = (44_100, 48_000, 32_000)
#: First four bytes of a frame of layer III, with a version, rate and number of kbit/s that exist.
FRAME = re.compile(
    rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb][%s][\x00-\xff]"
    % b"".join(re.escape(bytes([byte])) for byte in range(0x10, 0xF0) if byte & 12 != 12)
)
#: Encoders fill up beginning and end, which libsndfile takes away.
LEAST_SECONDS = 0.5
#: A header of NIST's SPHERE.
NIST_BYTES = 1024


def find_unread(path: Path, file_format: str, num_frames: int, rate_hz: int) -> str:
    """Say what a file holds, or promises, beyond the frames that are read; nothing if empty.

    An MP3 without a count of its frames is taken to have the first one's bit rate throughout, and
    of several that were joined, or Ogg streams in a row, the first one's length is read. Of a NIST
    file that is cut short as many samples are read as are there.
    """
    seconds = num_frames / rate_hz
    if file_format == "NIST":
        with path.open("rb") as file:
            promised = re.search(rb"\nsample_count -i (\d+)", file.read(NIST_BYTES))
        if promised and int(promised[1]) > num_frames:
            return (
                f"kept, but cut short: its header promises {int(promised[1]):,} samples, and there "
                f"are {num_frames:,}"
            )
    if file_format not in ("MP3", "OGG"):
        return ""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if file_format == "MP3" and (there := mp3_seconds(content)) > seconds + LEAST_SECONDS:
            return f"kept, but only {seconds:,.1f} of its {there:,.1f} s are read: encode it again"
        # A page that begins a stream, after one that does not.
        if file_format == "OGG" and content.find(b"OggS\0\2", content.find(b"OggS\0\0")) > 0:
            return "kept, but only the first of its streams is read: encode it again, as one"
    return ""


def mp3_seconds(content: mmap.mmap | bytes) -> float:
    """Return the duration of all frames of layer III that follow another one."""
    seconds, position, follows = 0.0, 0, False
    while 0 <= position < len(content):
        if FRAME.match(content, position):
            head = int.from_bytes(content[position : position + 4], "big")
            version, number, rate = head >> 19 & 3, head >> 12 & 15, head >> 10 & 3
            samples, rate_hz = 576 << (version == 3), RATES_HZ[rate] >> (2, 0, 1, 0)[version]
            seconds += follows * samples / rate_hz
            size = samples // 8 * 1000 * KBITS[version == 3][number] // rate_hz
            position += size + (head >> 9 & 1)
            follows = True
        elif content[position : position + 3] == b"ID3":  # a tag, which may hold an image
            a, b, c, d = content[position : position + 10].ljust(10, b"\0")[6:]
            position += 10 + (a << 21 | b << 14 | c << 7 | d)
            follows = False
        else:
            found = FRAME.search(content, position)
            position = found.start() if found else -1
            follows = False
    return seconds
