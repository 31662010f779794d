"""Packs of text folders: int32 tokens with the bounds of sentences and documents."""

import hashlib
import itertools
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, UInt64

from cpc.data.cache import Log, preparing
from cpc.data.text.corpus import (
    Corpus,
    Vocabulary,
    count_tokens,
    mix_bits,
    rank_words,
)
from cpc.data.text.tokenizer import END_LETTERS, read_chunks, tokenize
from cpc.data.walk import DOCUMENTS as NO_DATA
from cpc.data.walk import (
    Found,
    Skipped,
    check_skipped,
    digest_files,
    find_copies,
    printable,
    require_data,
)
from cpc.files import file_crc32, read_sealed, replacing_folder, write_sealed, write_text
from cpc.types import UserError

#: Version of the tokenizer and the format. Increment it if either changes.
VERSION = 5
TOKENS, SENTENCES, DOCUMENTS = "tokens.int32", "sentences.int64", "documents.int64"
VOCABULARY, INDEX = "vocabulary.tsv", "index.json"
#: Suffixes of unsupported text formats, which are listed in `skipped`.
PROSE = {".doc", ".docx", ".htm", ".html", ".md", ".odt", ".pdf", ".rst", ".rtf", ".tex"}
#: Number of windows hashed at a time.
CHUNK_WINDOWS = 1 << 20
#: Number of words in a compared window. Texts by different authors share few long windows.
WINDOW_WORDS = 8
#: A document is a copy if larger documents contain more than this fraction of its windows.
MAX_SHARED = 0.5
#: Minimum number of distinct windows. Shorter documents are only compared as a whole.
MIN_WINDOWS = 16
#: Approximate maximum number of windows. In larger texts, one half, one quarter, ... of the
#: windows is compared, sampled by content.
MAX_WINDOWS = 1 << 22


def read_text_folder(
    path: str | Path,
    out: str | Path,
    log: Log = print,
    *,
    form: str = "prose",
    lowercase: bool = True,
    min_count: int = 1,
    max_vocabulary: int = 0,
    max_skipped_fraction: float = 0.1,
) -> Corpus:
    """Read a text file or the .txt files of a folder, and cache the result as a pack in `out`.

    Each file is a document. Documents that are mostly contained in a larger document are left out
    and listed in `skipped`, so that splits do not share text. The pack is reused while the files
    (paths, sizes and modification times) and options are unchanged and its checksums are correct.
    Packing holds four bytes per word in memory. The corpus is memory-mapped.

    Args:
        path: a file with any suffix, or a folder with .txt files at any depth.
        out: folder of packs, such as `cache_dir() / "packs"`.
        log: called with each line of progress.
        form: "prose", or "lines" of words separated by whitespace (see `tokenizer`).
        lowercase: whether to convert upper case to lower case.
        min_count: minimum count of a word in the text. Rarer words become `<unk>`.
        max_vocabulary: number of most frequent words to keep, without `<unk>`. 0 keeps all words.
        max_skipped_fraction: largest fraction of unreadable files that is accepted.
    """
    path, out = Path(path).expanduser(), Path(out)
    found = Found([path], [], [])
    if not path.is_file():
        found = require_data(path, "text", {".txt"}, NO_DATA - PROSE, "convert it to .txt in utf-8")
    options = {
        "form": form,
        "lowercase": lowercase,
        "min_count": min_count,
        "max_vocabulary": max_vocabulary,
        "max_skipped_fraction": max_skipped_fraction,
    }
    settings = json.dumps([VERSION, str(path.resolve()), options])
    key = digest_files((file.resolve() for file in found.files), settings)
    folder = out / f"{path.name or 'text'}-{key[:12]}"
    with preparing(folder.name, log, out):
        if not is_whole(folder, key):
            with replacing_folder(folder) as part:
                write_pack(part, path, found, key, options, log)
    corpus = open_pack(folder)
    return corpus._replace(skipped=[*found.unreadable, *corpus.skipped, *found.left_out])


def write_pack(
    folder: Path, path: Path, found: Found, key: str, options: dict[str, Any], log: Log
) -> None:
    """Write the tokens, bounds, vocabulary and sealed index of a pack into a folder."""
    log(f"packing the text of {len(found.files):,} files of {printable(path)} in {folder.parent}")
    ids: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    is_end = bytearray()  # whether each id is a sentence end instead of a word
    documents, skipped = [], []
    for file in found.files:
        try:
            documents.append(read_document(file, ids, is_end, options))
        except (UserError, OSError) as error:
            skipped.append((printable(file), str(error)))
            log(f"skipped: {error}")
    damaged = [*found.unreadable, *skipped]
    total = len(found.files) + len(found.unreadable)
    max_fraction = options["max_skipped_fraction"] if len(damaged) < total else 0.0
    check_skipped(damaged, total, max_fraction, f"files of text in {printable(path)}")
    documents, copies = leave_out_copies(documents)
    for _, reason in copies:
        log(f"skipped: {reason}")
    counts = count_tokens((one.tokens for one in documents), len(ids))
    least = max(1, options["min_count"])
    vocabulary, rank = rank_words(list(ids), counts, least, options["max_vocabulary"])
    if (number := len(vocabulary.words) - 1) < 2:
        problem = f"vocabulary of {printable(path)} is too small (got {number} words)"
        raise UserError(f"{problem}: add more text or lower min_count")
    with (folder / TOKENS).open("wb") as stream:
        for document in documents:
            rank[document.tokens].tofile(stream)
    shifts = np.cumsum([0, *(len(one.tokens) for one in documents)])
    starts = [one.starts + shift for one, shift in zip(documents, shifts, strict=False)]
    np.concatenate([*starts, shifts[-1:]]).tofile(folder / SENTENCES)
    np.cumsum([0, *map(len, starts)]).tofile(folder / DOCUMENTS)
    write_vocabulary(folder / VOCABULARY, vocabulary)
    sums = {name: file_crc32(folder / name) for name in (TOKENS, SENTENCES, DOCUMENTS, VOCABULARY)}
    write_sealed(folder / INDEX, {"key": key, "skipped": [*skipped, *copies], "sums": sums})
    log(
        f"packed {shifts[-1]:,} words in {len(documents):,} documents, "
        f"{number:,} words in the vocabulary"
    )


class Document(NamedTuple):
    """A file as word ids by first occurrence, int32, and the start of each sentence, int64."""

    file: Path
    tokens: np.ndarray
    starts: np.ndarray


def leave_out_copies(documents: list[Document]) -> tuple[list[Document], list[Skipped]]:
    """Separate originals from copies, and return the originals and a (name, reason) per copy."""
    copies = find_copied_documents([one.tokens for one in documents])
    skipped = []
    for number, (other, share) in sorted(copies.items()):
        name, original = (printable(documents[one].file) for one in (number, other))
        relation = "is a copy of" if share == 1 else f"shares {share:.0%} of its text with"
        skipped.append((name, f"{name} {relation} {original}: left out"))
    return [one for number, one in enumerate(documents) if number not in copies], skipped


def find_copied_documents(parts: Sequence[Int[np.ndarray, " _"]]) -> dict[int, tuple[int, float]]:
    """Map each copied document to its original and its fraction of windows in larger documents.

    `parts` are the word ids of each document. A window is `WINDOW_WORDS` consecutive words at any
    position, so copies are also found if lines are wrapped differently or a licence is added. The
    original is the larger document that shares most windows, or the first of equal documents.

    >>> text = np.arange(100)
    >>> find_copied_documents([text[:60], text, text])
    {2: (1, 1.0), 0: (1, 1.0)}
    """
    equal = find_copies(hashlib.blake2b(part.tobytes()).digest() for part in parts)
    copies = {copy: (first, 1.0) for copy, first in equal.items()}
    sample = 1 << max(0, (sum(map(len, parts)) // MAX_WINDOWS).bit_length())
    windows = {j: hash_windows(part, sample) for j, part in enumerate(parts) if j not in equal}
    large = [j for j, own in windows.items() if len(own) >= MIN_WINDOWS]
    if len(large) < 2:
        return copies
    order = sorted(large, key=lambda j: -len(windows[j]))
    sizes = [len(windows[j]) for j in order]
    rank = np.repeat(np.arange(len(order)), sizes)
    hashes = np.concatenate([windows[j] for j in order])
    _, first, window = np.unique(hashes, return_index=True, return_inverse=True)
    owner = rank[first][window]  # the largest document with this window
    for number, own in enumerate(np.split(owner, np.cumsum(sizes)[:-1])):
        shared = own[own != number]
        if len(shared) > MAX_SHARED * len(own):
            largest = int(np.bincount(shared).argmax())
            copies[order[number]] = order[largest], len(shared) / len(own)
    return copies


def hash_windows(tokens: Int[np.ndarray, " n"], sample: int = 1) -> UInt64[np.ndarray, " _"]:
    """Return the distinct hashes of word windows that `sample`, a power of two, divides."""
    hashes = [np.zeros(0, np.uint64)]
    for begin in range(0, len(tokens) - WINDOW_WORDS + 1, CHUNK_WINDOWS):
        mixed = mix_bits(tokens[begin : begin + CHUNK_WINDOWS + WINDOW_WORDS - 1].astype(np.uint64))
        total = np.zeros(len(mixed) - WINDOW_WORDS + 1, np.uint64)
        for i in range(WINDOW_WORDS):
            total = mix_bits(total ^ mixed[i : i + len(total)])
        hashes.append(total[total % np.uint64(sample) == 0])
    # Without counts, np.unique of NumPy 2.4 fills a hash table, which takes 75 times as long.
    return np.unique(np.concatenate(hashes), return_counts=True)[0]


def read_document(
    file: Path, ids: defaultdict[str, int], is_end: bytearray, options: dict[str, Any]
) -> Document:
    """Read the words and sentences of a file, adding new words to `ids` and `is_end`."""
    end_letters = END_LETTERS[options["form"]]
    parts, starts, num_tokens = [], [], 0
    is_open = False  # whether the last sentence may continue in the next chunk
    for chunk in read_chunks(file):
        words = tokenize(chunk, options["form"], lowercase=options["lowercase"])
        new = np.fromiter(map(ids.__getitem__, words), np.int32, len(words))
        is_end.extend([word[0] in end_letters for word in itertools.islice(ids, len(is_end), None)])
        ends = np.frombuffer(is_end, bool)[new]
        num_ends = np.cumsum(ends)[~ends] + (not is_open)  # before each word
        starts.append(num_tokens + np.flatnonzero(np.diff(num_ends, prepend=0) > 0))
        parts.append(new[~ends])
        num_tokens += len(parts[-1])
        is_open = not ends[-1] if len(ends) else is_open
    if not num_tokens:
        raise UserError(f"{printable(file)} has no words")
    return Document(file, np.concatenate(parts), np.concatenate(starts))


def write_vocabulary(path: Path, vocabulary: Vocabulary) -> None:
    """Write a vocabulary as one line word<TAB>count per word, in the order of the ids."""
    pairs = zip(vocabulary.words, vocabulary.counts.tolist(), strict=True)
    write_text(path, "".join(f"{word}\t{count}\n" for word, count in pairs))


def read_vocabulary(path: str | Path) -> Vocabulary:
    """Read a vocabulary written by `write_vocabulary`."""
    words, counts = [], []
    try:
        lines = Path(path).read_text("utf-8").split("\n")[:-1]
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the vocabulary {path}: {error}") from error
    for number, line in enumerate(lines, start=1):
        word, _, count = line.partition("\t")
        if not word or not count.isdecimal():
            raise UserError(
                f"line {number} of the vocabulary {path} is invalid (got {line[:40]!r}): "
                "give a word, a tab and a count"
            )
        words.append(word)
        counts.append(int(count))
    return Vocabulary(tuple(words), np.array(counts, np.int64))


def is_whole(folder: Path, key: str) -> bool:
    """Return whether a folder contains an undamaged pack with the fingerprint `key`."""
    try:
        index = read_sealed(folder / INDEX)
        return index["key"] == key and all(
            file_crc32(folder / name) == total for name, total in index["sums"].items()
        )
    except (UserError, OSError, LookupError, TypeError):
        return False


def open_pack(folder: Path) -> Corpus:
    """Return the corpus of an undamaged pack, with memory-mapped tokens."""
    return Corpus(
        tokens=np.asarray(np.memmap(folder / TOKENS, np.int32, "r")),
        sentence_starts=np.asarray(np.memmap(folder / SENTENCES, np.int64, "r")),
        document_starts=np.fromfile(folder / DOCUMENTS, np.int64),
        vocabulary=read_vocabulary(folder / VOCABULARY),
        skipped=[(name, reason) for name, reason in read_sealed(folder / INDEX)["skipped"]],
    )
