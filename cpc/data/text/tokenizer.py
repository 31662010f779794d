r"""A tokenizer that splits text into words and sentence ends, and reads files in chunks.

The form "prose" converts upper case to lower case. A word is a run of letters and digits with their
marks (accents, the vowels of Hindi), and joiners and apostrophes inside ("don't", "o'clock"); all
other characters separate words. In scripts without spaces (Chinese, Japanese, Thai, Lao, Khmer,
Burmese) each character with its marks is a word. Format characters such as soft hyphens are
dropped.

A sentence ends at `.`, `!` or `?` before whitespace, at any other Unicode sentence terminator, and
at an empty line. Closing quotes and brackets may follow. A full stop does not end a sentence after
a title or abbreviation of `ABBREVIATIONS`, after a single letter other than a and i ("J. Smith"),
or after initials ("U.S.A.").

In the form "lines", words are separated by whitespace and each line is a sentence, as in tokenized
files such as Mikolov's Penn Treebank and the BookCorpus.
"""

import codecs
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

from cpc.data.walk import check_file, printable
from cpc.types import UserError

#: Number of bytes of a file that are read at a time.
CHUNK_BYTES = 1 << 20
#: Possible second and later bytes of a UTF-8 character.
CONTINUATION_BYTES = bytes(range(0x80, 0xC0))
#: Byte order marks of unsupported encodings. UTF-32 is first, as its mark begins with UTF-16's.
ENCODING_MARKS = {
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}
#: Abbreviations whose full stop does not end a sentence. Capitalized forms are also matched.
ABBREVIATIONS = ("mr", "mrs", "ms", "dr", "st", "messrs", "esq", "capt", "col", "gen", "hon", "rev")


def _parse_ranges(ranges: str) -> set[int]:
    """Return the code points in hexadecimal ranges such as "21 61D-61F" (Unicode's notation)."""
    ends = [[int(end, 16) for end in part.split("-")] for part in ranges.split()]
    return {point for run in ends for point in range(run[0], run[-1] + 1)}


#: Property Sentence_Terminal of Unicode 17, PropList.txt (STerm and ATerm of UAX 29), and the
#: Tibetan shad (0F0D-0F12), which Unicode excludes because it also ends clauses.
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
#: First characters of sentence ends by form. In prose, a sentence end begins with a terminator,
#: the Greek question mark or a line end.
END_LETTERS = {
    "prose": frozenset(map(chr, TERMINALS)) | {";", "\n"},
    "lines": frozenset("\n"),
}


def find_classes(last: int) -> tuple[str, ...]:
    """Return regex character classes for code points up to `last`, without their brackets.

    Classes without characters above 0xFFFF match three times as fast.
    """
    points = (*range(min(last + 1, 0x20000)), *range(0xE0000, min(last + 1, 0xE0200)))
    categories: dict[str, set[int]] = {}
    for point in points:
        categories.setdefault(unicodedata.category(chr(point)), set()).add(point)
    found = (
        TERMINALS,
        TERMINALS - WIDE_STOPS - set(map(ord, ".!?")),  # these end a sentence anywhere
        WIDE_STOPS,
        # Quotes and closing brackets, which may follow a terminator.
        set(map(ord, "'\"")).union(*(categories[name] for name in ("Pe", "Pf", "Pi"))),
        SPACELESS,
        # Characters that extend the previous one: combining marks, Thai and Lao am, and the
        # prolonged sound and voicing marks of kana.
        _parse_ranges("E33 EB3 30FC FF70 FF9E-FF9F").union(
            *(categories[name] for name in ("Mn", "Mc", "Me"))
        ),
        # Characters that would split words: format characters, such as soft hyphens, directions and
        # byte order marks, and Armenian intonation marks, which occur inside words. Joiners
        # (200C-200D) are kept as parts of words, and the zero width space (200B) as a separator.
        _parse_ranges("55B 55C 55E") | categories["Cf"] - _parse_ranges("200B-200D"),
    )
    return tuple(_make_class(point for point in one if point <= last) for one in found)


def _make_class(points: Iterable[int]) -> str:
    numbered = enumerate(sorted(points))  # in a run of points, the difference is constant
    runs = [list(run) for _, run in itertools.groupby(numbered, lambda pair: pair[1] - pair[0])]
    ends = ([run[0][1], run[-1][1]] if len(run) > 1 else [run[0][1]] for run in runs)
    return "".join("-".join(re.escape(chr(end)) for end in pair) for pair in ends)


@functools.cache
def compile_patterns(last: int) -> tuple[re.Pattern[str], ...]:
    """Compile the patterns of dropped characters, long runs of marks, and tokens of prose.

    The patterns match code points up to `last`. A run of more than 30 marks is long, which is the
    limit of UAX 15 (stream-safe text format), since normalization sorts marks in quadratic time. A
    token is a word or a sentence end.

    A stop at the end of a chunk ends a sentence, as chunks consist of whole lines. If several
    sentence ends follow each other, only the first has an effect. Matching takes linear time: runs
    of terminators only match from their start, and quantifiers do not backtrack.
    """
    terminals, sure, wide, closers, spaceless, marks, dropped = find_classes(last)
    letter, one = rf"[^\W_{spaceless}]", rf"(?![{marks}])[{spaceless}]"
    tie = (
        rf"[{marks}]++\u200d?|['\u05f3\u05f4\u00b7]{letter}"
        r"|(?<=[\u05d0-\u05ea])\"(?=[\u05d0-\u05ea])"  # Hebrew initials, as keyboards write them
        rf"|[\u200c\u200d]++(?={letter}|[{marks}])"
    )
    word = rf"{letter}++(?:(?:{tie}){letter}*+)*+|{one}(?:[\u200c\u200d]?[{marks}])*+"
    no_end = "".join(rf"(?<!\b[{word[0]}{word[0].upper()}]{word[1:]})" for word in ABBREVIATIONS)
    stop = rf"[!?]|\.(?=[{terminals}])|{no_end}(?<![^\w'][b-hj-zB-HJ-Z])(?<!\b[^\W\d_]\.[aiAI])\."
    end = (
        rf"(?<![{terminals}])(?:"
        rf"[.!?{wide}]*+[{sure}][{terminals}]*+[{closers}]*+"
        rf"|(?:{stop})[{terminals}]*+[{closers}]*+(?=\s|$|{one})"
        rf"|[{wide}]++(?!\d)[{closers}]*+)"
        rf"|(?<=[\u0370-\u03ff\u1f00-\u1fff]);[{closers}]*+(?=\s|$)"  # the Greek question mark
        r"|\n[^\S\n]*+\n"
    )
    long_marks = rf"([{marks}]{{30}})[{marks}]++"
    return re.compile(f"[{dropped}]"), re.compile(long_marks), re.compile(rf"{word}|{end}")


_HIGH = re.compile("[\U00010000-\U0010ffff]")


def tokenize(text: str, form: str = "prose", *, lowercase: bool = True) -> list[str]:
    r"""Split a text into words and sentence ends, in order.

    Letters and their accents are composed to one character (NFC).

    >>> tokenize('Mr. Knightley didn’t. "Indeed!" she said.\n\nNo')
    ['mr', 'knightley', "didn't", '.', 'indeed', '!"', 'she', 'said', '.', '\n\n', 'no']
    """
    text = text.lower() if lowercase else text
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    is_ascii = text.isascii()
    dropped, long_marks, token = compile_patterns(
        0x10FFFF if not is_ascii and _HIGH.search(text) else 0xFFFF
    )
    if form == "prose" and not is_ascii:
        text = dropped.sub("", text).replace("\u2029", "\n\n").replace("’", "'")
    if not is_ascii:
        text = unicodedata.normalize("NFC", long_marks.sub(r"\1", text))
    return re.findall(r"\S++|\n", text) if form == "lines" else token.findall(text)


def read_chunks(path: Path) -> Iterator[str]:
    """Yield the text of a file in chunks of whole lines.

    A line end is prepended to chunks that begin at the start of a line, so that empty lines are
    also found there. To bound memory, a line that is longer than a chunk is split at a space, or
    between any two characters if the chunk has no spaces.
    """
    check_file(path)
    rest, line, begin = b"", 1, "\n"
    with path.open("rb") as file:
        first = file.read(4)
        for name, marks in ENCODING_MARKS.items():
            if first.startswith(marks):
                fix = f"convert it with iconv -f {name} -t utf-8"
                raise UserError(f"{printable(path)} is {name}: {fix}")
        file.seek(0)
        while block := file.read(CHUNK_BYTES):
            text = rest + block
            stop = text.rfind(b"\n") + 1 or text.rfind(b" ") + 1
            if not stop and len(text) >= 2 * CHUNK_BYTES:  # the last character may be incomplete
                stop = max(0, len(text.rstrip(CONTINUATION_BYTES)) - 1)
            if stop:
                yield begin + decode(text[:stop], path, line)
                line += text.count(b"\n", 0, stop)
                begin = "\n" if text[stop - 1 : stop] == b"\n" else ""
            rest = text[stop:]
    if rest:
        yield begin + decode(rest, path, line)


def decode(content: bytes, path: Path, first_line: int = 1) -> str:
    """Decode UTF-8 text, dropping the byte order marks that some editors insert."""
    zero = content.find(0)
    if zero >= 0:
        line = first_line + content.count(b"\n", 0, zero)
        raise UserError(
            f"line {line} of {printable(path)} contains a zero byte: convert the file to utf-8, or "
            "remove it from the folder if it is binary"
        )
    try:
        return content.decode("utf-8").replace("\ufeff", "")
    except UnicodeDecodeError as error:
        line = first_line + content.count(b"\n", 0, error.start)
        raise UserError(
            f"line {line} of {printable(path)} is not utf-8: convert the file, for example with "
            "iconv -f latin1 -t utf-8"
        ) from error
