"""Packs of text folders: int32 tokens with the bounds of sentences and documents."""

import hashlib
import itertools
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from jaxtyping import Int, UInt64

from cpc.data.cache import Log
from cpc.data.sources.debian import one_process
from cpc.data.text.corpus import (
    Corpus,
    Vocabulary,
    count_tokens,
    cut_chunks,
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
    Only the vocabulary needs to fit into memory.

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
    try:
        out.mkdir(parents=True, exist_ok=True)
        with one_process(out / f"{folder.name}.lock", log):
            if not is_whole(folder, key):
                with replacing_folder(folder) as part:
                    write_pack(part, path, found, key, options, log)
    except OSError as error:
        raise UserError(f"cannot write the pack {folder}: {error}") from error
    corpus = open_pack(folder)
    return corpus._replace(skipped=[*found.unreadable, *corpus.skipped, *found.left_out])


def write_pack(
    folder: Path, path: Path, found: Found, key: str, options: dict[str, Any], log: Log
) -> None:
    """Write the tokens, bounds, vocabulary and sealed index of a pack into a folder."""
    log(f"packing the text of {len(found.files):,} files of {printable(path)} in {folder.parent}")
    ids: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    raw = folder / "raw.int32", folder / "raw.int64"
    documents, skipped = write_documents(*raw, found.files, ids, options, log)
    damaged = [*found.unreadable, *skipped]
    total = len(found.files) + len(found.unreadable)
    max_fraction = options["max_skipped_fraction"] if len(damaged) < total else 0.0
    check_skipped(damaged, total, max_fraction, f"files of text in {printable(path)}")
    tokens = np.asarray(np.memmap(raw[0], np.int32, "r"))
    starts = np.asarray(np.memmap(raw[1], np.int64, "r"))
    documents, copies = leave_out_copies(tokens, documents)
    for _, reason in copies:
        log(f"skipped: {reason}")
    counts = count_tokens((tokens[slice(*one.words)] for one in documents), len(ids))
    least = max(1, options["min_count"])
    vocabulary, rank = rank_words(list(ids), counts, least, options["max_vocabulary"])
    if (number := len(vocabulary.words) - 1) < 2:
        problem = f"vocabulary of {printable(path)} is too small (got {number} words)"
        raise UserError(f"{problem}: add more text or lower min_count")
    write_ranked(folder, tokens, starts, documents, rank)
    for file in raw:
        file.unlink()
    write_vocabulary(folder / VOCABULARY, vocabulary)
    sums = {name: file_crc32(folder / name) for name in (TOKENS, SENTENCES, DOCUMENTS, VOCABULARY)}
    write_sealed(folder / INDEX, {"key": key, "skipped": [*skipped, *copies], "sums": sums})
    log(
        f"packed {int(vocabulary.counts.sum()):,} words in {len(documents):,} documents, "
        f"{len(vocabulary.words) - 1:,} words in the vocabulary"
    )


class Document(NamedTuple):
    """A packed file and the (start, stop) positions of its words and sentences in the pack."""

    file: Path
    words: tuple[int, int]
    sentences: tuple[int, int]


def write_documents(
    raw: Path,
    bounds: Path,
    files: Sequence[Path],
    ids: defaultdict[str, int],
    options: dict[str, Any],
    log: Log,
) -> tuple[list[Document], list[Skipped]]:
    """Write bounds and tokens, with ids by first use, and return documents and skipped files."""
    is_end = bytearray()  # whether each id is a sentence end instead of a word
    documents, skipped = [], []
    with raw.open("w+b") as tokens, bounds.open("w+b") as sentences:
        for file in files:
            starts = tokens.tell(), sentences.tell()
            try:
                write_document(file, tokens, sentences, ids, is_end, options)
                if tokens.tell() == starts[0]:
                    raise UserError(f"{printable(file)} has no words")
                words = starts[0] // 4, tokens.tell() // 4
                documents.append(Document(file, words, (starts[1] // 8, sentences.tell() // 8)))
            except (UserError, OSError) as error:
                for stream, start in zip((tokens, sentences), starts, strict=True):
                    stream.seek(start)
                    stream.truncate()
                skipped.append((printable(file), str(error)))
                log(f"skipped: {error}")
    return documents, skipped


def leave_out_copies(
    tokens: np.ndarray, documents: list[Document]
) -> tuple[list[Document], list[Skipped]]:
    """Separate originals from copies, and return the originals and a (name, reason) per copy."""
    copies = find_copied_documents(tokens, [0, *(one.words[1] for one in documents)])
    skipped = []
    for number, (other, share) in sorted(copies.items()):
        name, original = (printable(documents[one].file) for one in (number, other))
        relation = "is a copy of" if share == 1 else f"shares {share:.0%} of its text with"
        skipped.append((name, f"{name} {relation} {original}: left out"))
    return [one for number, one in enumerate(documents) if number not in copies], skipped


def find_copied_documents(
    tokens: Int[np.ndarray, " n"], bounds: Sequence[int]
) -> dict[int, tuple[int, float]]:
    """Map each copied document to its original and its fraction of windows in larger documents.

    Document j is tokens[bounds[j]:bounds[j + 1]]. A window is `WINDOW_WORDS` consecutive words at
    any position, so copies are also found if lines are wrapped differently or a licence is added.
    The original is the larger document that shares most windows, or the first of equal documents.

    >>> text = np.arange(100)
    >>> find_copied_documents(np.concatenate([text[:60], text, text]), [0, 60, 160, 260])
    {2: (1, 1.0), 0: (1, 1.0)}
    """
    parts = [tokens[a:b] for a, b in itertools.pairwise(bounds)]
    equal = find_copies(hashlib.blake2b(part.tobytes()).digest() for part in parts)
    copies = {copy: (first, 1.0) for copy, first in equal.items()}
    sample = 1 << max(0, (len(tokens) // MAX_WINDOWS).bit_length())
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
        hashes.append(sorted_unique(total[total % np.uint64(sample) == 0]))
    return sorted_unique(np.concatenate(hashes))


def sorted_unique(values: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " _"]:
    """Return the unique values in ascending order, as `np.unique` does.

    For integers, `np.unique` of NumPy 2.4 uses a hash table, which takes 75 times as long for a
    million values that are nearly all distinct.

    >>> sorted_unique(np.array([3, 1, 3], np.uint64))
    array([1, 3], dtype=uint64)
    """
    values = np.sort(values)
    return values[np.append(True, values[1:] != values[:-1])[: len(values)]]


def write_ranked(
    folder: Path,
    tokens: np.ndarray,
    starts: np.ndarray,
    documents: Sequence[Document],
    rank: np.ndarray,
) -> None:
    """Write tokens with ids ranked by count, and the starts of sentences and documents."""
    with (folder / TOKENS).open("wb") as words, (folder / SENTENCES).open("wb") as sentences:
        for document in documents:
            shift = words.tell() // 4 - document.words[0]
            (starts[slice(*document.sentences)] + shift).tofile(sentences)
            for chunk in cut_chunks([tokens[slice(*document.words)]]):
                rank[chunk].tofile(words)
        np.array([words.tell() // 4]).tofile(sentences)
    sizes = (end - begin for begin, end in (one.sentences for one in documents))
    np.cumsum([0, *sizes]).tofile(folder / DOCUMENTS)


def write_document(
    file: Path,
    tokens: BinaryIO,
    sentences: BinaryIO,
    ids: defaultdict[str, int],
    is_end: bytearray,
    options: dict[str, Any],
) -> None:
    """Append one file's tokens, with ids by first occurrence, and its sentence starts."""
    end_letters = END_LETTERS[options["form"]]
    is_open = False  # whether the last sentence may continue in the next chunk
    for chunk in read_chunks(file):
        words = tokenize(chunk, options["form"], lowercase=options["lowercase"])
        new = np.fromiter(map(ids.__getitem__, words), np.int32, len(words))
        is_end.extend([word[0] in end_letters for word in itertools.islice(ids, len(is_end), None)])
        ends = np.frombuffer(is_end, bool)[new]
        num_ends = np.cumsum(ends)[~ends] + (not is_open)  # before each word
        begins = np.diff(num_ends, prepend=0) > 0
        (tokens.tell() // 4 + np.flatnonzero(begins)).astype(np.int64).tofile(sentences)
        new[~ends].tofile(tokens)
        is_open = not ends[-1] if len(ends) else is_open


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
