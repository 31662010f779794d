r"""Text to words and ends of sentences, a chunk of a file at a time.

Prose: what is upper case becomes lower case, a word is a run of letters and digits with their marks
(accents, the vowels of Hindi and Thai) and apostrophes inside ("don't", "o'clock"), and all else
parts words. A sentence ends at `.`, `!` or `?` (closing
quotes and brackets may follow) before white space, and at an empty line; no sentence ends after a
title or abbreviation of `ABBREVIATIONS`, or after a single letter other than a and i ("J. Smith").

Lines: words are parted by white space and a sentence is a line, as in files that are tokenized
already, such as Mikolov's of the Penn Treebank and the BookCorpus.
"""

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from cpc.data.walk import check_file, printable
from cpc.types import UserError

#: Bytes of a file that are in memory at a time.
CHUNK_BYTES = 1 << 20
#: Those with a full stop that ends no sentence; all are tried with a capital, too.
ABBREVIATIONS = ("mr", "mrs", "ms", "dr", "st", "messrs", "esq", "capt", "col", "gen", "hon", "rev")
# Which `re` has no name for; above 0xFFFF there are few in use.
_MARKS = "".join(c for c in map(chr, range(0x10000)) if unicodedata.category(c).startswith("M"))
_WORD = rf"[^\W_]+(?:[{_MARKS}]+[^\W_]*|'[^\W_]+)*"
_NO_END = "".join(rf"(?<!\b[{word[0]}{word[0].upper()}]{word[1:]})" for word in ABBREVIATIONS)
_END = rf"(?:[!?]|{_NO_END}(?<![^\w'][b-hj-zB-HJ-Z])\.)[.!?]*[\"'”)\]]*(?=\s|$)|\n[^\S\n]*\n"

#: A word, or the end of a sentence. The end of a line is one even where words wrap: a chunk ends
#: with a line, and of several ends in a row all but the first part nothing.
PATTERNS = {"prose": re.compile(rf"{_WORD}|{_END}"), "lines": re.compile(r"[^\s]+|\n")}
#: The first letter of whatever ends a sentence, by format.
END_LETTERS = {"prose": ".!?\n", "lines": "\n"}


def tokenize(text: str, form: str = "prose", *, lowercase: bool = True) -> list[str]:
    r"""Return the words of a text and, as they stand there, the ends of its sentences.

    A letter and its accent are one character (NFC), however they are written.

    >>> tokenize('Mr. Knightley didn’t. "Indeed!" she said.\n\nNo')
    ['mr', 'knightley', "didn't", '.', 'indeed', '!"', 'she', 'said', '.', '\n\n', 'no']
    """
    text = text.lower() if lowercase else text
    text = unicodedata.normalize("NFC", text).replace("’", "'")  # typographic to plain
    return PATTERNS[form].findall(text)


def read_chunks(path: Path, chunk_bytes: int = CHUNK_BYTES) -> Iterator[str]:
    """Yield the text of a file, whole lines at a time, each chunk after a line's end of its own.

    That first end lets an empty line be seen at the start of a chunk, too.

    Raises:
        UserError: the file is none, is binary, or not utf-8; it names the line.
    """
    check_file(path)
    rest, line = b"", 1
    with path.open("rb") as file:
        while block := file.read(chunk_bytes):
            text = rest + block
            end = b"\n" if b"\n" in text else b" "  # a line that is longer than a chunk
            lines, mark, rest = text.rpartition(end)
            if mark:
                yield "\n" + decode(lines + mark, path, line)
                line += (lines + mark).count(b"\n")
    if rest:
        yield "\n" + decode(rest, path, line)


def decode(content: bytes, path: Path, first_line: int = 1) -> str:
    """Return utf-8 as text, without the mark that some editors put first.

    Raises:
        UserError: it is none; it names the line.
    """
    zero = content.find(0)
    if zero >= 0:
        line = first_line + content.count(b"\n", 0, zero)
        raise UserError(
            f"line {line} of {printable(path)} holds a zero byte: a binary file is no text, so "
            "take it out of the folder"
        )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + content.count(b"\n", 0, error.start)
        raise UserError(
            f"line {line} of {printable(path)} is not utf-8: convert the file, such as by "
            "iconv -f latin1 -t utf-8"
        ) from error
    return text.removeprefix("\ufeff") if first_line == 1 else text
