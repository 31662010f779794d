"""Character classes for tokenizing: sentence terminators, marks, scripts without spaces."""

import functools
import re
import unicodedata
from collections.abc import Iterable
from typing import NamedTuple


def _parse_ranges(ranges: str) -> set[int]:
    """Return the code points of hexadecimal ranges, as in Unicode's data files.

    >>> sorted(_parse_ranges("21 61D-61F"))
    [33, 1565, 1566, 1567]
    """
    ends = [[int(end, 16) for end in part.split("-")] for part in ranges.split()]
    return {point for run in ends for point in range(run[0], run[-1] + 1)}


#: Property Sentence_Terminal of Unicode 17, PropList.txt: STerm and ATerm of UAX 29; and the
#: Tibetan shad (0F0D-0F12), which Unicode leaves out because it also ends clauses.
TERMINALS = _parse_ranges(
    "21 2E 3F 589 61D-61F 6D4 700-702 7F9 837 839 83D-83E 964-965 F0D-F12 104A-104B 1362 1367-1368 "
    "166E 1735-1736 17D4-17D5 1803 1809 1944-1945 1AA8-1AAB 1B4E-1B4F 1B5A-1B5B 1B5E-1B5F "
    "1B7D-1B7F 1C3B-1C3C 1C7E-1C7F 2024 203C-203D 2047-2049 2CF9-2CFB 2E2E 2E3C 2E53-2E54 "
    "2E60-2E61 3002 A4FF A60E-A60F A6F3 A6F7 A876-A877 A8CE-A8CF A92F A9C8-A9C9 AA5D-AA5F "
    "AAF0-AAF1 ABEB FE12 FE15-FE16 FE52 FE56-FE57 FF01 FF0E FF1F FF61 10A56-10A57 10F55-10F59 "
    "10F86-10F89 11047-11048 110BE-110C1 11141-11143 111C5-111C6 111CD 111DE-111DF 11238-11239 "
    "1123B-1123C 112A9 113D4-113D5 1144B-1144C 115C2-115C3 115C9-115D7 11641-11642 1173C-1173E "
    "11944 11946 11A42-11A43 11A9B-11A9C 11C41-11C42 11EF7-11EF8 11F43-11F44 16A6E-16A6F 16AF5 "
    "16B37-16B38 16B44 16D6E-16D6F 16E98 1BC9F 1DA88"
)
#: Full stops of other widths, which are decimal points before a digit.
WIDE_STOPS = _parse_ranges("2024 FE52 FF0E")
#: Scripts without spaces between words: line break class SA of Unicode 17 (Thai, Lao, Myanmar,
#: Khmer and other Tai scripts), kana, bopomofo, Yi and Han.
SPACELESS = _parse_ranges(
    "E01-E3A E40-E4E E81-EBD EC0-ECE EDC-EDF 1000-103F 1050-108F 109A-109F 1780-17D3 17D7 "
    "17DC-17DD 1950-1974 1980-19C9 19DE-19DF 1A20-1A7C 1AA0-1AAD 3005-3007 3021-3029 3031-3035 "
    "3038-303C 3041-30FA 30FC-312F 31A0-31BF 31F0-31FF 3400-4DBF 4E00-A48C A9E0-A9EF A9FA-A9FE "
    "AA60-AADF F900-FAD9 FF66-FF9F 11700-1172B 1173A-1173B 1173F-11746 16FE2-16FE3 16FF0-16FF6 "
    "1AFF0-1B16F 20000-3FFFD"
)
#: First letters of an end of a sentence: a terminator, the Greek question mark or a line's end.
END_LETTERS = frozenset(map(chr, TERMINALS)) | {";", "\n"}


class Classes(NamedTuple):
    """Bodies of classes of regular expressions, without their brackets."""

    terminals: str
    sure_terminals: str  # not ".", "!", "?" and wide stops: they end a sentence anywhere
    wide_stops: str
    closers: str  # quotes and closing brackets, which may follow a terminator
    spaceless: str
    marks: str
    """Characters that extend the one before: combining marks, and what Unicode attaches as well
    (Thai and Lao am, the prolonged sound and voicing of kana)."""
    dropped: str
    """Characters that would cut words: format characters, such as soft hyphens, directions and byte
    order marks, and the Armenian marks of intonation, which stand inside words. Joiners (200C-200D)
    are parts of words, and the zero width space (200B) separates words."""


@functools.cache
def find_classes(last: int) -> Classes:
    """Return the classes of the characters up to a code point.

    Classes without characters above 0xFFFF are matched three times as fast.
    """
    points = (*range(min(last + 1, 0x20000)), *range(0xE0000, min(last + 1, 0xE0200)))
    categories: dict[str, set[int]] = {}
    for point in points:
        categories.setdefault(unicodedata.category(chr(point)), set()).add(point)
    quotes = {ord('"'), ord("'")}
    found = dict(
        terminals=TERMINALS,
        sure_terminals=TERMINALS - WIDE_STOPS - {ord(letter) for letter in ".!?"},
        wide_stops=WIDE_STOPS,
        closers=quotes.union(*(categories[name] for name in ("Pe", "Pf", "Pi"))),
        spaceless=SPACELESS,
        marks=_parse_ranges("E33 EB3 30FC FF70 FF9E-FF9F").union(
            *(categories[name] for name in ("Mn", "Mc", "Me"))
        ),
        dropped=_parse_ranges("55B 55C 55E") | categories["Cf"] - _parse_ranges("200B-200D"),
    )
    return Classes(
        *(_make_class(point for point in one if point <= last) for one in found.values())
    )


def _make_class(points: Iterable[int]) -> str:
    """Return the body of a class of code points, consecutive ones as ranges."""
    runs: list[list[int]] = []
    for point in sorted(points):
        if runs and runs[-1][1] == point - 1:
            runs[-1][1] = point
        else:
            runs.append([point, point])
    return "".join("-".join(re.escape(chr(end)) for end in sorted(set(run))) for run in runs)
