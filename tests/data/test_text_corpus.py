"""Text to tokens, sentences and documents; packs; splits; subsampling."""

import errno
import os
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from packages import quiet

from cpc import data
from cpc.data import read_text_folder, split_sentences, tokenize
from cpc.data.text import pack, tokenizer
from cpc.types import UserError


def write(folder, **texts):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        content = text if isinstance(text, bytes) else text.encode()
        (folder / f"{name}.txt").write_bytes(content)
    return folder


def sentences(corpus):
    """Words of each sentence, by document."""
    words = [corpus.vocabulary.words[i] for i in corpus.tokens]
    cut = [words[a:b] for a, b in zip(corpus.sentence_starts, corpus.sentence_starts[1:])]  # noqa: B905
    return [
        [" ".join(one) for one in cut[a:b]]
        for a, b in zip(corpus.document_starts, corpus.document_starts[1:])  # noqa: B905
    ]


@pytest.fixture
def corpus(tmp_path):
    texts = {"a": "The cat sat. The dog\nran!\n\nThe end", "b": "A cat. (Mr. Cat!) It’s I. B. Cat"}
    return read_text_folder(write(tmp_path / "texts", **texts), tmp_path / "packs", quiet)


def test_sentences_and_documents(corpus, tmp_path):
    assert sentences(corpus) == [
        ["the cat sat", "the dog ran", "the end"],
        ["a cat", "mr cat", "it's i", "b cat"],
    ]
    assert corpus.tokens.dtype == np.int32
    assert not corpus.tokens.flags.owndata, "mapped, not read"
    assert corpus.sentence_starts.dtype == corpus.document_starts.dtype == np.int64
    (tmp_path / "ptb.txt").write_text(" no it was n't \n\n mr. N <unk> . said\n")
    lines = read_text_folder(tmp_path / "ptb.txt", tmp_path / "packs", quiet, form="lines")
    assert sentences(lines) == [["no it was n't", "mr. n <unk> . said"]]
    (tmp_path / "mac.txt").write_bytes(b"one two\rthree\r\rfour five\r")
    mac = read_text_folder(tmp_path / "mac.txt", tmp_path / "packs", quiet)
    assert sentences(mac) == [["one two three", "four five"]]


def test_ids_fall_in_frequency(corpus, tmp_path, monkeypatch):
    words, counts = corpus.vocabulary
    assert words[:3] == ("<unk>", "cat", "the")
    assert counts[0] == 0
    assert (np.diff(counts[1:]) <= 0).all()
    monkeypatch.setattr("cpc.data.text.corpus.CHUNK_TOKENS", 3)
    np.testing.assert_array_equal(data.count_words(corpus), counts)
    path = tmp_path / "v.tsv"
    data.write_vocabulary(path, corpus.vocabulary)
    assert data.read_vocabulary(path).words == words
    path.write_text("the\t3\ncat 2\n")
    with pytest.raises(UserError, match="line 2 of the vocabulary"):
        data.read_vocabulary(path)
    index = data.index_of(corpus.vocabulary)
    assert data.encode(["the", "zebra", "cat"], index).tolist() == [2, 0, 1]


def test_identity_depends_on_starts_words_and_order(corpus):
    others = [
        corpus._replace(tokens=corpus.tokens[::-1]),
        corpus._replace(sentence_starts=corpus.sentence_starts[:-1]),
        corpus._replace(vocabulary=corpus.vocabulary._replace(words=corpus.vocabulary.words[1:])),
    ]
    assert len({one.identity() for one in (corpus, *others)}) == 4


def test_cut_words_become_unknown(tmp_path):
    folder = write(tmp_path / "texts", a="one one one two two <unk> three four. <unk>")
    common = read_text_folder(folder, tmp_path / "packs", quiet, form="lines", min_count=2)
    assert common.vocabulary.words == ("<unk>", "one", "two")
    assert common.vocabulary.counts.tolist() == [4, 3, 2]
    most = read_text_folder(folder, tmp_path / "packs", quiet, form="lines", max_vocabulary=3)
    assert most.vocabulary.words == ("<unk>", "one", "two", "three")
    assert most.tokens.tolist() == [1, 1, 1, 2, 2, 0, 3, 0, 0]


def read_in_chunks(monkeypatch, size):
    monkeypatch.setattr(tokenizer, "CHUNK_BYTES", size)


@pytest.mark.parametrize(("form", "expected"), [
    ("prose", ["émile ran", "he fell", "no end", "last one has a long line", "the end"]),
    ("lines", ["émile ran.", "he", "fell!", "no end", "last one", "has a long line", "the end"]),
])  # fmt: skip
def test_chunks_do_not_show(tmp_path, monkeypatch, form, expected):
    """A cut within a line is neither the end of a sentence nor an empty line."""
    text = "\ufeffÉmile ran.\nHe\nfell! \n \nNo end\n\n\nLast one \nhas a long line\n\nThe end\n"
    folder = write(tmp_path / "texts", a=text)
    for size in (7, 50, 2**20):  # no word is longer: lines without an end in a chunk are cut there
        read_in_chunks(monkeypatch, size)
        found = read_text_folder(folder, tmp_path / f"packs{size}", quiet, form=form)
        assert sentences(found) == [expected]


def test_a_pack_is_used_again_until_the_files_change(tmp_path):
    folder, said = write(tmp_path / "texts", a="one two one"), []
    for _ in range(2):
        read_text_folder(folder, tmp_path / "packs", said.append)
    assert sum("packing" in line for line in said) == 1
    (path,) = (tmp_path / "packs").glob("*/tokens.int32")
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 3]) + content[1:])  # damaged, it is made again
    read_text_folder(folder, tmp_path / "packs", said.append)
    assert path.read_bytes() == content
    assert not list((tmp_path / "packs").glob("*.part*"))
    write(folder, b="three three three three")
    again = read_text_folder(folder, tmp_path / "packs", said.append)
    assert again.vocabulary.words[1] == "three"
    other = read_text_folder(folder, tmp_path / "packs", said.append, min_count=2)
    assert other.vocabulary.words == ("<unk>", "three", "one")
    for name in ("one", "two"):  # of one size and time
        place = write(tmp_path / name / "texts", a=f"{name} {name} more")
        os.utime(place / "a.txt", (1e9, 1e9))
        for path in (place, place / "a.txt"):
            assert read_text_folder(path, tmp_path / "packs").vocabulary.words[1] == name


def test_a_pack_in_a_cache_that_is_read_only_is_used(tmp_path, monkeypatch):
    folder, packs, said = write(tmp_path / "texts", a="one two one"), tmp_path / "packs", []
    read_text_folder(folder, packs, said.append)
    open_path = Path.open

    def refuse(path, mode="r", *args, **kwargs):
        if mode not in ("r", "rb") and packs in path.parents:
            raise OSError(errno.EROFS, "Read-only file system")
        return open_path(path, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    for _ in range(2):  # with its lock, and without
        again = read_text_folder(folder, packs, said.append)
        assert again.vocabulary.words[1:] == ("one", "two")
        for lock in packs.glob("*.lock"):
            lock.unlink()
    assert sum("packing" in line for line in said) == 1
    write(folder, b="three")
    with pytest.raises(UserError, match=r"cannot prepare texts-.* Read-only file system"):
        read_text_folder(folder, packs, said.append)


@pytest.mark.parametrize(("content", "message"), [
    (b"... !\n\n", "no words"), (b"one one one", "got 1 words"),
    (b"fine\ntext\x00\x01", "line 2 of .*a.txt"), (b"fine\n\nna\xefve words", "line 3 of .*a.txt"),
    (b"\xfe\xff" + "one two".encode("utf-16-be"), "iconv -f utf-16"),
    ("one two".encode("utf-32"), "iconv -f utf-32"), ("one".encode("utf-16-le"), "zero byte"),
    (b"line\n" * 9999 + b"\xff\n", "line 10000 "),
])  # fmt: skip
def test_bad_text_gets_a_sentence(tmp_path, monkeypatch, content, message):
    read_in_chunks(monkeypatch, 64 if len(content) > 99 else 2**20)
    folder = write(tmp_path / "texts", a=content)
    with pytest.raises(UserError, match=message) as caught:
        read_text_folder(folder, tmp_path / "packs", quiet)
    assert "\n" not in str(caught.value)
    assert not [p for p in (tmp_path / "packs").iterdir() if p.suffix != ".lock"]


def test_a_bad_file_among_many_leaves_no_trace(tmp_path, monkeypatch):
    read_in_chunks(monkeypatch, 12)  # some of the bad file is written before the damage is met
    texts = {f"f{i:02}": f"word{i} and more. And more" for i in range(12)}
    good = read_text_folder(write(tmp_path / "good", **texts), tmp_path / "packs", quiet)
    bad = write(tmp_path / "bad", **texts, f05x=b"and odd. words\nhere\n\xff")
    (bad / "d.md").touch()
    found = read_text_folder(bad, tmp_path / "packs", quiet)
    assert sentences(found) == sentences(good)
    assert found.vocabulary.words == good.vocabulary.words
    assert [Path(name).name for name, _ in found.skipped] == ["f05x.txt", "d.md"]
    (bad / "d.md").unlink()
    assert len(read_text_folder(bad, tmp_path / "packs", quiet).skipped) == 1
    with pytest.raises(UserError, match="1 of 13 files"):
        read_text_folder(bad, tmp_path / "packs", quiet, max_skipped_fraction=0.01)
    for folder in (tmp_path / "none", write(tmp_path / "empty")):
        with pytest.raises(UserError, match=rf"{folder}"):
            read_text_folder(folder, tmp_path / "packs", quiet)


def make_corpus(lengths, documents, seed=0):
    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    bounds = np.concatenate([[0], np.cumsum(documents)])
    tokens = rng.integers(0, 5, starts[-1]).astype(np.int32)
    return data.Corpus(
        tokens, starts, bounds, data.Vocabulary(tuple("uabcd"), np.zeros(5, np.int64)), []
    )


def test_split_keeps_blocks_and_what_was_there():
    lengths = np.random.default_rng(0).integers(1, 9, 3000)
    corpus = make_corpus(lengths, [1000, 500, 1500])
    parts = split_sentences(corpus, valid=0.1, test=0.2, block_sentences=20)
    sizes = [len(part.sentence_starts) - 1 for part in parts]
    assert sum(sizes) == 3000
    assert sum(len(part.tokens) for part in parts) == len(corpus.tokens)
    assert 0.6 < sizes[0] / 3000 < 0.8
    assert 0.1 < sizes[2] / 3000 < 0.3
    for part in parts:
        assert (np.diff(part.document_starts) % 20 == 0).all()
        assert part.document_starts[-1] == len(part.sentence_starts) - 1
    more = corpus._replace(
        document_starts=np.append(corpus.document_starts, 3001),
        sentence_starts=np.append(corpus.sentence_starts, len(corpus.tokens)),
    )
    again = split_sentences(more, valid=0.1, test=0.2, block_sentences=20)
    for part, longer in zip(parts, again, strict=True):
        np.testing.assert_array_equal(part.tokens, longer.tokens[: len(part.tokens)])
    with pytest.raises(UserError, match="validation part of 2 sentences"):
        split_sentences(make_corpus([3, 3], [2]))
    assert data.documents_of(make_corpus([1] * 5, [2, 3])).tolist() == [0, 0, 1, 1, 1]


def test_subsampling_is_word2vecs_and_pure_in_its_key():
    counts = np.array([50, 50_000, 500, 5])
    keep, t, total = data.keep_probabilities(counts, 1e-3), 1e-3, counts.sum()
    for count, probability in zip(counts, keep, strict=True):
        # As in word2vec.c, whose sample is t and train_words the total.
        ran = (np.sqrt(count / (t * total)) + 1) * (t * total) / count
        assert probability == pytest.approx(min(1, ran))
    tokens = np.random.default_rng(0).integers(0, 4, 100_000)
    kept = data.subsample(tokens, keep, 3, 7)
    np.testing.assert_array_equal(kept, data.subsample(tokens, keep, 3, 7))
    assert (kept != data.subsample(tokens, keep, 3, 8)).any()
    shares = np.bincount(tokens[kept], minlength=4) / np.bincount(tokens, minlength=4)
    np.testing.assert_allclose(shares, keep, atol=0.02)


@pytest.mark.parametrize(("text", "expected"), [
    ("in St. Ives. etc", "in st ives . etc"), ("x\u200c y\u200dz a\u200bb", "x y\u200dz a b"),
    ("cafe\u0301 l'e\u0301te\u0301 2x\u0301!", "café l'été 2x\u0301 !"),
    ("ինչո՞ւ", "ինչու"), ("我?你", "我 ? 你"),
    ("一个T恤。二", "一 个 t 恤 。 二"), ("テレビ、ガー2台", "テ レ ビ ガー 2 台"),
    ("ภาษาไทยที่น้ำ๑๒", "ภ า ษ า ไ ท ย ที่ น้ำ ๑๒"), ("ខ្ញុំ ពាសា", "ខ្ ញុំ ពា សា"), ("မြန်မာ", "မြ န် မာ"),
    ("ພາສາ", "ພ າ ສ າ"), ("한국어 있다", "한국어 있다"), ("𠀀𠀁 a", "𠀀 𠀁 a"),
    ("３．5 3.5 a.b wait...what x?y a;b", "３ 5 3 5 a b wait what x y a b"),
    ("Τι; Ναι", "τι ; ναι"),  # the Greek question mark
    ("In the U.S.A. now. So am I.", "in the u s a now . so am i ."),  # initials end no sentence
    ('צה"ל בא. "טוב."', 'צה"ל בא . טוב ."'), ('א"א" "א', 'א"א א'),
])  # fmt: skip
def test_words_and_sentence_ends(text, expected):
    """In scripts without spaces, each character with its marks is a word."""
    assert tokenize(text) == expected.split()


TERMINATORS = "।॥؟۔։።፧។៕။།܀߹᙮᠃᭚꘎꛳꡶꣎꩝꯫𑁇𑅁𖫵"


def test_marks_of_all_scripts():
    assert tokenize("O'Clock-x_y ÄÖ", lowercase=False) == ["O'Clock", "x", "y", "ÄÖ"]
    assert tokenize("e\u0301 e\u0301t", "lines") == ["é", "ét"]
    for word in ("हिन्दी", "ශ්\u200dරී", "می\u200cخواهم", "ന്\u200d", "שָׁלוֹם", "col·lecció", "צה״ל"):
        assert tokenize(f"{word} {word}.") == [word, word, "."]
    for character in "\u00ad\u2060\ufeff\u200e\u202c\u2066\U000e0020":  # which are dropped
        assert tokenize(f"extra{character}ordinary.{character} So") == ["extraordinary", ".", "so"]
    for end in (*TERMINATORS, "!", "?", ".", "...", "?!", ".”", "!»", "۔'"):
        assert tokenize(f"ab{end} cd ef{end}") == ["ab", end, "cd", "ef", end]
    for end in (*"。！？｡．﹖", "。」", "！！", "？”"):  # without a space
        assert tokenize(f"我{end}你{end}") == ["我", end, "你", end]


@pytest.mark.parametrize("text", [
    "." * 20_000 + "x", "。.!" * 7_000 + "x", "．" * 20_000 + "5", "." + ")" * 20_000 + "x",
    ".)" * 10_000 + "x", "a" + "\u200c" * 20_000, "\n" + " " * 20_000 + "x",
    "a" + "\u0301\u0316" * 50_000, "'" * 20_000,
], ids=range(9))  # fmt: skip
def test_tokenizing_takes_linear_time(text):
    """A hundredth of this bound is enough; quadratic matching takes longer than the bound."""
    begin = time.process_time()
    for form in ("prose", "lines"):
        tokenize(text, form)
    assert time.process_time() - begin < 3


def test_a_line_without_blanks_is_read_in_pieces(tmp_path, monkeypatch):
    text = "好ß" * 4000 + "\nend"
    (tmp_path / "a.txt").write_text(text)
    read_in_chunks(monkeypatch, 64)
    chunks = list(tokenizer.read_chunks(tmp_path / "a.txt"))
    assert max(len(chunk.encode()) for chunk in chunks) < 4 * 64
    assert "".join(chunks).removeprefix("\n") == text.replace("\nend", "\n\nend")


def novel(seed, sentences=60, words=7):
    draw = np.random.default_rng(seed).integers(0, 300, (sentences, words))
    return " ".join(" ".join(f"w{n}" for n in row) + "." for row in draw)


LICENCE = "This text is free. You may copy it as often as you like, and give it away. "
COPIES = {
    "case": str.upper,
    "licence": lambda text: LICENCE + "\n\n" + text,
    "a part": lambda text: text[: len(text) * 2 // 3],
    "an anthology": lambda text: novel(7) + novel(8) + text,
    "line ends": lambda text: textwrap.fill(text, 40).replace("\n", "\r\n"),
}


@pytest.mark.parametrize("change", COPIES.values(), ids=COPIES)
def test_copies_of_a_text_are_left_out_and_listed(tmp_path, change):
    texts = {"a": novel(0), "b": novel(1), "c": novel(2), "d": change(novel(1))}
    folder = write(tmp_path / "texts", **texts)
    for form in ("lines", "prose", "prose"):  # packed, and opened again
        corpus = read_text_folder(folder, tmp_path / "packs", quiet, form=form)
        ((name, reason),) = corpus.skipped
        assert {Path(name).stem} < {"b", "d"}
        assert "b.txt" in reason
        assert "d.txt" in reason
        assert len(corpus.document_starts) == 4
    train, _, test = split_sentences(corpus, valid=0, test=0.3, block_sentences=10)
    known, tested = ({one for document in sentences(part) for one in document}
                     for part in (train, test))  # fmt: skip
    assert tested
    assert not known & tested


def test_texts_without_copies_are_as_if_no_copy_had_been_there(tmp_path):
    """Sentences that are in every text do not make copies."""
    often = "\n\nChapter one.\n\nHe said nothing.\n\n" * 3
    texts = {name: novel(i) + often for i, name in enumerate("abc")}
    alone = read_text_folder(write(tmp_path / "alone", **texts), tmp_path / "packs", quiet)
    more = {**texts, "a2": texts["a"], "c2": texts["c"] + " And more."}
    left = read_text_folder(write(tmp_path / "more", **more), tmp_path / "packs", quiet)
    assert alone.skipped == []
    assert len(left.skipped) == 2
    assert sentences(left)[:2] == sentences(alone)[:2]
    assert left.vocabulary.counts[:5].tolist() == alone.vocabulary.counts[:5].tolist()


def test_sentences_of_the_test_text_do_not_train(tmp_path):
    text = novel(0, 100, 9)
    folder = write(tmp_path / "t", twice=f"{text}\n\nShort one.\n\n{text}")
    corpus = read_text_folder(folder, tmp_path / "p", quiet)
    train, _, test = split_sentences(corpus, valid=0, test=0.3, block_sentences=10)
    left, num_copies = data.leave_out_tested(train, test)
    parts = (sentences(part) for part in (train, left, test))
    before, after, known = ([one for document in part for one in document] for part in parts)
    assert num_copies == sum(one in known for one in before) > 0
    assert after == [one for one in before if one not in known]
    assert np.shares_memory(
        data.select_sentences(train, np.arange(len(before)) >= 3).tokens, train.tokens
    )
    assert data.leave_out_tested(left, test)[1] == 0
    with pytest.raises(UserError, match="test text"):
        data.leave_out_tested(test, test)


def test_words_of_the_test_text_alone_are_unknown(tmp_path):
    corpus = read_text_folder(write(tmp_path / "t", one=novel(0, 200, 9)), tmp_path / "p", quiet)
    train, test, _ = data.split_for_training(corpus, test=0.3, seed=0, block_sentences=10)
    words = [word for document in sentences(train) for one in document for word in one.split()]
    vocabulary = train.vocabulary
    assert test.vocabulary == vocabulary
    assert set(vocabulary.words[1:]) == set(words)
    assert vocabulary.counts.tolist() == [words.count(word) for word in vocabulary.words]
    assert (np.diff(vocabulary.counts[1:]) <= 0).all()
    plain = split_sentences(corpus, valid=0, test=0.3, block_sentences=10)[2]
    expected = [
        [" ".join(w if w in words else "<unk>" for w in one.split()) for one in document]
        for document in sentences(plain)
    ]
    assert sentences(test) == expected
    assert (test.tokens == 0).any()


def test_windows_of_large_texts_are_sampled(monkeypatch):
    text = np.random.default_rng(0).integers(0, 1000, 20_000)
    every, some = pack.hash_windows(text), pack.hash_windows(text, 8)
    monkeypatch.setattr(pack, "CHUNK_WINDOWS", 32)
    np.testing.assert_array_equal(pack.hash_windows(text), every)
    assert set(some) < set(every)
    assert len(some) == pytest.approx(len(every) / 8, rel=0.1)
    monkeypatch.setattr(pack, "MAX_WINDOWS", 1000)
    found = pack.find_copied_documents([text[:9000], text])
    assert set(found) == {0}
