r"""Text to words and ends of sentences, a chunk of a file at a time.

Prose: upper case becomes lower case. A word is a run of letters and digits with their marks
(accents, the vowels of Hindi), joiners and apostrophes inside ("don't", "o'clock"); all else
separates words. In scripts without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese) each
character with its marks is a word. Format characters such as soft hyphens are dropped.

A sentence ends at `.`, `!` or `?` before white space, at any other sentence terminator of Unicode
wherever it stands, and at an empty line. Closing quotes and brackets may follow. No sentence ends
after a title or abbreviation of `ABBREVIATIONS`, after a single letter other than a and i
("J. Smith"), or after initials ("U.S.A.").

Lines: words are separated by white space and a sentence is a line, as in files that are tokenized
already, such as Mikolov's of the Penn Treebank and the BookCorpus.
"""

import codecs
import functools
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cpc.data.text import characters
from cpc.data.walk import check_file, printable
from cpc.types import UserError

#: Bytes of a file that are in memory at a time.
CHUNK_BYTES = 1 << 20
#: Byte order marks of encodings that are not read; of UTF-32 first, which begins as UTF-16 does.
ENCODING_MARKS = {
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}
#: Those with a full stop that ends no sentence; all are tried with a capital, too.
ABBREVIATIONS = ("mr", "mrs", "ms", "dr", "st", "messrs", "esq", "capt", "col", "gen", "hon", "rev")


class Patterns(NamedTuple):
    """Regular expressions of prose."""

    dropped: re.Pattern[str]
    long_marks: re.Pattern[str]
    """More than 30 marks in a row, which no language needs: normalization sorts them in quadratic
    time, and so UAX 15 limits them (stream-safe text format)."""
    token: re.Pattern[str]  # a word, or the end of a sentence


@functools.cache
def compile_patterns(last: int) -> Patterns:
    """Compile the patterns for text of characters up to a code point.

    The end of a line is an end even if words wrap: a chunk ends with a line, and of several ends in
    a row all except the first separate nothing. No run of characters is tried from each of its
    characters: runs of terminators begin at the first, and no quantifier gives back.
    """
    terminals, sure, wide, closers, spaceless, marks, dropped = characters.find_classes(last)
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
    return Patterns(
        dropped=re.compile(f"[{dropped}]"),
        long_marks=re.compile(rf"([{marks}]{{30}})[{marks}]++"),
        token=re.compile(rf"{word}|{end}"),
    )


_HIGH = re.compile("[\U00010000-\U0010ffff]")
#: The first letters of whatever ends a sentence, by format.
END_LETTERS = {"prose": characters.END_LETTERS, "lines": frozenset("\n")}


def tokenize(text: str, form: str = "prose", *, lowercase: bool = True) -> list[str]:
    r"""Return the words of a text and, as they stand there, the ends of its sentences.

    A letter and its accent are one character (NFC), however they are written.

    >>> tokenize('Mr. Knightley didn’t. "Indeed!" she said.\n\nNo')
    ['mr', 'knightley', "didn't", '.', 'indeed', '!"', 'she', 'said', '.', '\n\n', 'no']
    """
    text = text.lower() if lowercase else text
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    is_ascii = text.isascii()
    patterns = compile_patterns(0x10FFFF if not is_ascii and _HIGH.search(text) else 0xFFFF)
    if form == "prose" and not is_ascii:
        text = patterns.dropped.sub("", text).replace("\u2029", "\n\n").replace("’", "'")
    if not is_ascii:
        text = unicodedata.normalize("NFC", patterns.long_marks.sub(r"\1", text))
    return re.findall(r"\S++|\n", text) if form == "lines" else patterns.token.findall(text)


def read_chunks(path: Path, chunk_bytes: int = CHUNK_BYTES) -> Iterator[str]:
    """Yield the text of a file, whole lines at a time.

    A chunk at the start of a line begins with a line's end of its own, so that an empty line is
    seen there, too. A line that is longer than a chunk is cut at a blank, or at any character if a
    chunk has none, so that few chunks are in memory and each is copied a few times.
    """
    check_file(path)
    rest, line, begin = b"", 1, "\n"
    with path.open("rb") as file:
        check_encoding(file.read(4), path)
        file.seek(0)
        while block := file.read(chunk_bytes):
            text = rest + block
            stop = text.rfind(b"\n") + 1 or text.rfind(b" ") + 1
            if not stop and len(text) >= 2 * chunk_bytes:
                stop = last_character(text)
            if stop:
                yield begin + decode(text[:stop], path, line)
                line += text.count(b"\n", 0, stop)
                begin = "\n" if text[stop - 1 : stop] == b"\n" else ""
            rest = text[stop:]
    if rest:
        yield begin + decode(rest, path, line)


def last_character(text: bytes) -> int:
    """Return where the last character of UTF-8, which may not be whole, begins.

    >>> last_character("aß".encode()), last_character("aß".encode()[:-1])
    (1, 1)
    """
    start = len(text) - 1
    while start > max(0, len(text) - 4) and text[start] & 0xC0 == 0x80:
        start -= 1
    return start


def check_encoding(first: bytes, path: Path) -> None:
    """Check the first bytes of a file for the marks of other encodings."""
    for name, marks in ENCODING_MARKS.items():
        if first.startswith(marks):
            raise UserError(
                f"{printable(path)} is {name}, not utf-8: convert it, such as by "
                f"iconv -f {name} -t utf-8"
            )


def decode(content: bytes, path: Path, first_line: int = 1) -> str:
    """Return UTF-8 as text, without byte order marks, which some editors put first."""
    zero = content.find(0)
    if zero >= 0:
        line = first_line + content.count(b"\n", 0, zero)
        raise UserError(
            f"line {line} of {printable(path)} holds a zero byte: text has none, so convert the "
            "file to utf-8, or take it out of the folder if it is binary"
        )
    try:
        return content.decode("utf-8").replace("\ufeff", "")
    except UnicodeDecodeError as error:
        line = first_line + content.count(b"\n", 0, error.start)
        raise UserError(
            f"line {line} of {printable(path)} is not utf-8: convert the file, such as by "
            "iconv -f latin1 -t utf-8"
        ) from error
