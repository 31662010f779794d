"""Sentences: batches, masks, directions, probes, word vectors, and a whole run."""

import functools
import json
import types
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import text_quick_thoughts, text_sentences, words
from configs.keys import make_config
from cpc import data, models
from cpc.data import Corpus, Vocabulary
from cpc.data.sources.grammar import make_grammar
from cpc.results import read_scores
from cpc.results.score import score_frame
from cpc.types import CPCOutputs, UserError
from experiments.command.config import with_settings
from experiments.kinds.registry import CONTRASTIVE
from experiments.kinds.text import data as text_data
from experiments.kinds.text import embed as text_embed
from experiments.kinds.text import kind as text
from experiments.kinds.text import probes, sections
from experiments.kinds.text.data import TextData, cut_runs, load_data, make_runs, read_corpus
from experiments.kinds.words import run as words_run
from experiments.kinds.words.run import load_data as load_words
from experiments.training.contrastive import interpret, make_probe
from experiments.training.objective import init_objective, objective_loss
from experiments.training.probes import FeatureSet, ProbeContext
from tests import plans
from tests.commands import flags_of, run

TINY = {
    "data.source": "grammar", "data.num_documents": 40, "data.max_vocabulary": 60,
    "data.run_sentences": 6, "data.max_words": 10, "data.batch_size": 4,
    "data.block_sentences": 10, "model.width": 8, "model.context_width": 8,
    "model.embedding_width": 4, "probe.tasks": ("next",), "num_steps": 10,
    "optim.warmup_steps": 0, "evaluate.num_runs": 8,
}  # fmt: skip


def tiny(get_config=text_sentences.get_config, **settings):
    return with_settings(get_config(), TINY | settings)


def corpus_of(documents, words=9, seed=0):
    """Return documents with random sentences of 1 to 5 words; each token is unique."""
    lengths = np.random.default_rng(seed).integers(1, 6, sum(documents))
    starts = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.arange(starts[-1], dtype=np.int32)
    bounds = np.concatenate([[0], np.cumsum(documents)])
    vocabulary = Vocabulary(tuple(map(str, range(starts[-1]))), np.ones(starts[-1], np.int64))
    return Corpus(tokens, starts, bounds, vocabulary, [])


def test_runs_are_consecutive_sentences_of_one_document():
    corpus = corpus_of([40, 3, 1, 12])
    draw = make_runs(corpus, run_sentences=8, max_words=4, batch_size=300, seed=2)
    batch, again = draw(7), draw(7)
    np.testing.assert_array_equal(batch["x"], again["x"])
    assert not np.array_equal(batch["x"], draw(8)["x"])
    line = np.array([0, 40 + 8, 40 + 16 + 8, 40 + 2 * 16])  # short documents are padded
    for x, document, place in zip(batch["x"], batch["utterance"], batch["sample"], strict=True):
        first = corpus.document_starts[document] + place - line[document]
        stop = min(first + 8, corpus.document_starts[document + 1])
        assert corpus.document_starts[document] <= first < stop
        for place in range(8):
            wanted = []
            if first + place < stop:
                begin, end = corpus.sentence_starts[first + place : first + place + 2]
                wanted = corpus.tokens[begin:end][:4].tolist()
            assert x[place].tolist() == wanted + [-1] * (4 - len(wanted))
    count = np.bincount(batch["utterance"], minlength=4)
    assert count[2] == 0, "a single sentence has no successor"
    assert 0.55 < count[0] / 300 < 0.78, "40 of 40 + 8 + 12"
    assert count[1] > 20, "a short document is a run"


def test_processes_share_a_batch(monkeypatch):
    options = {"run_sentences": 5, "max_words": 4, "batch_size": 6, "seed": 0}
    plans.check_shares(monkeypatch, text_data, lambda: make_runs(corpus_of([40, 20]), **options))


def problem_of(config):
    return plans.problem_of(config, load_data(config, str))


def loss_of(problem, batch, variables):
    outputs, _ = problem.model.apply(variables, batch, False)
    directions = problem.split_branches(outputs, batch)
    plan, rng = problem.plan, jax.random.key(0)
    given = init_objective(plan, directions)
    return outputs, *objective_loss(plan, *given, directions, rng, False)[:2]


@pytest.mark.parametrize("get_config", [text_sentences.get_config, text_quick_thoughts.get_config])
def test_missing_sentences_do_not_affect_the_loss(get_config):
    """Removing the empty sentences of short runs leaves the loss unchanged."""
    problem = problem_of(tiny(get_config))
    batch = problem.draw(0)

    @jax.jit
    def losses():
        variables = problem.model.init(jax.random.key(0), batch)
        x = jnp.where(np.arange(6)[:, None] < 4, batch["x"], -1)
        return [loss_of(problem, {**batch, "x": one}, variables)[1:] for one in (x, x[:, :4])]

    (loss, sums), (expected, others) = losses()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for one, other in zip(sums, others, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_forward_and_backward_branches_align_neighbours():
    problem = problem_of(tiny(text_quick_thoughts.get_config))
    batch, place = problem.draw(0), np.tile(np.arange(6), (4, 1))[..., None]
    outputs = CPCOutputs(*map(jnp.asarray, (place, 10 * place, 100 * place[..., None])))
    forward, backward = problem.split_branches(outputs, batch)
    assert forward.outputs.z[0, :, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert backward.outputs.z[0, :, 0].tolist() == [5, 4, 3, 2, 1, 0]
    assert backward.outputs.predictions[0, :, 0, 0].tolist() == [500, 400, 300, 200, 100, 0]
    begins = np.asarray(backward.positions.sample - backward.positions.time)
    assert (begins == begins[:, :1]).all()
    apart = np.abs(np.subtract.outer(begins[:, 0], begins[:, 0]))
    first = np.asarray(batch["sample"], int)
    np.testing.assert_array_equal(apart, np.abs(np.subtract.outer(first, first)))


def test_quick_thoughts_excludes_own_sentence_and_may_add_zero_score():
    plain, zero = (
        problem_of(tiny(text_quick_thoughts.get_config, **given))
        for given in ({}, {"negatives.choose": "with_zero"})
    )
    batch = jax.tree.map(jnp.asarray, plain.draw(0))

    @jax.jit
    def losses():
        variables = plain.model.init(jax.random.key(0), batch)
        return [loss_of(problem, batch, variables) for problem in (plain, zero)]

    found = losses()
    outputs = found[0][0]
    positions = plain.split_branches(outputs, batch)[0].positions
    flat = jax.tree.map(lambda p: np.broadcast_to(p, (4, 6)).ravel(), positions)
    z, f = np.asarray(outputs.z, np.float64), np.asarray(outputs.c, np.float64)
    mask = (np.asarray(batch["x"]) >= 0).any(-1)
    terms = []
    for b, t in zip(*np.nonzero(mask[:, :-1] & mask[:, 1:]), strict=True):
        scores, at = z.reshape(-1, 8) @ f[b, t], b * 6 + t
        anchor = jax.tree.map(lambda p, at=at: p[at], flat)
        keep = np.array(plain.plan.rule(anchor, flat, 1)) & mask.ravel()
        keep[at + 1] = True
        assert not keep[at], "its own"
        total = np.exp(scores[keep]).sum()
        terms.append([np.log(total + extra) - scores[at + 1] for extra in (0.0, 1.0)])
    for (_, _, sums), wanted in zip(found, np.mean(terms, 0), strict=True):
        np.testing.assert_allclose(sums.loss[0] / sums.anchors[0], wanted, rtol=1e-4)


def test_same_sentence_in_another_run_is_not_a_negative():
    problem = problem_of(tiny(**{"data.num_documents": 2, "data.block_sentences": 40}))
    first, row = np.array([10, 13, 16]), np.arange(3)  # run 2 starts where run 0 ends
    batch = {"x": np.zeros((3, 6, 10), np.int32), "sequence": row, "utterance": 0 * row,
             "sample": first}  # fmt: skip
    outputs = CPCOutputs(*(jnp.zeros((3, 6, 1)) for _ in range(3)))
    positions = problem.split_branches(outputs, batch)[0].positions
    flat = jax.tree.map(lambda p: np.broadcast_to(p, (3, 6)).ravel(), positions)
    anchor = jax.tree.map(lambda p: p[0], flat)
    found = np.array(problem.plan.rule(anchor, flat, 1)).reshape(3, 6)
    assert found.astype(int).tolist() == [[1, 0, 1, 1, 1, 1], [0] * 3 + [1] * 3, [1] * 6]


def test_unusable_text_files_are_rejected(tmp_path):
    (tmp_path / "a.txt").write_text("one. one. one.")
    for path, mistake in (("", r"data\.path"), (str(tmp_path), r"vocabulary .*got 1 words")):
        with pytest.raises(UserError, match=mistake):
            load_data(tiny(**{"data.source": "files", "data.path": path}), str)
    with pytest.raises(UserError, match="fewer than two sentences"):
        make_runs(corpus_of([1, 1]), run_sentences=4, max_words=3, batch_size=2, seed=0)
    made = TextData(corpus_of([50]), corpus_of([5, 1]), {})
    with pytest.raises(UserError, match=r"test text .*got 6 sentences"):
        probes.probe_tasks(tiny(), made)
    probes.probe_tasks(tiny(**{"probe.tasks": ("genre",)}), made)


def test_truncated_and_skipped_text_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("CPC_DATA", str(tmp_path / "cache"))
    folder, draw, said = tmp_path / "texts", np.random.default_rng(0), []
    folder.mkdir()
    lines = [" ".join(f"w{n}" for n in draw.integers(0, 20, 40)) for _ in range(120)]
    lines[5::10] = lines[5:6] * 12  # the same sentence in each block, so also in the test text
    for name, content in (("a.txt", "\n".join(lines)), ("f.txt", "w1 w2 w3"), ("g.epub", "")):
        (folder / name).write_text(content)
    settings = {"data.source": "files", "data.path": str(folder), "data.form": "lines"}
    made = load_data(tiny(**settings, **{"data.test_fraction": 0.3}), said.append)
    (line,) = [one for one in said if one.startswith("data: ")]
    for part in ("3,600 of 4,803 words (75.0 %)", "1 of 121 sentences", "(g.epub)"):
        assert part in line
    names = [name.rpartition("/")[2] for name, _ in made.skipped]
    assert names == ["g.epub", "data.max_words", "documents", "data.test_fraction"]


def test_prepared_texts_are_read_in_both_kinds(tmp_path, monkeypatch):
    monkeypatch.setenv("CPC_DATA", str(tmp_path / "cache"))
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("A cat. A dog. A dog ran.")
    prepare = mock.Mock(return_value=tmp_path)
    for module in (text_data, words_run):
        monkeypatch.setattr(module, "prepare_texts", prepare)
    settings = {"data.source": "words+books", "data.min_count": 2}
    config = tiny(**settings)
    interpret(CONTRASTIVE["text"], config)
    of_words = with_settings(make_config(words.KEYS), {**settings, "data.test_fraction": 0.0})
    words_run.interpret(words_run, of_words)
    for corpus in (read_corpus(config, str), load_words(of_words, str).train):
        assert corpus.vocabulary.words == ("<unk>", "a", "dog")
    assert prepare.call_args_list == [mock.call("words+books", log=str)] * 2


def test_changed_vocabulary_is_rejected(tmp_path):
    config = tiny()
    made = load_data(config, str)
    for _ in range(2):
        text.record(config, tmp_path, made)
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert truth["mutual_information"] == sorted(truth["mutual_information"], reverse=True)
    words = made.train.vocabulary
    other = words._replace(words=(*words.words[:-2], words.words[-1], words.words[-2]))
    changed = made._replace(train=made.train._replace(vocabulary=other))
    with pytest.raises(UserError, match="changed since"):
        text.record(config, tmp_path, changed)


def init(config, model):
    return jax.jit(model.init)(jax.random.key(0), {"x": np.zeros((1, 6, 10), np.int32)})


def test_probes_find_the_topic_in_each_feature(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 80)
    said = [[f"topic{label}a", *rng.choice(["common" + c for c in "abcd"], 3)] for label in labels]
    config = tiny(**{"probe.tasks": ("movies", "next"), "probe.num_folds": 3,
                     "probe.features": ("z", "mean", "bag")})  # fmt: skip
    made, model = load_data(config, str), text.build_model(config)
    made = made._replace(tasks={"movies": (tuple(map(" ".join, said)), labels)})
    found = make_probe(text, config, tmp_path, made, model)(init(config, model), 3)
    scores = {(score.task, score.features): score for score in found}
    # z and mean come from 4 random numbers per word, which separate topics only partly.
    for features, accuracy in {"z": 0.75, "mean": 0.75, "bag": 0.9}.items():
        assert scores["movies", features].value > accuracy, features
    for score in found:
        assert score.low <= score.value <= score.high
        assert score.step == 3
    assert scores["movies", "z"].outcomes.items == scores["movies", "bag"].outcomes.items
    assert scores["next", "z"].chance == 0.5
    frame = types.SimpleNamespace(scores=score_frame(read_scores(tmp_path)))
    (table,) = sections.paper_section(frame).tables
    assert {"here: bag of words", "paper: CPC"} <= set(table.frame.method)


def test_perfect_predictions_find_the_next_sentence():
    config = tiny(**{"model.num_offsets": 1})
    corpus = make_grammar(20, 6, order=1.0)
    draw = make_runs(corpus, run_sentences=6, max_words=10, batch_size=64, seed=0)
    x = draw(0)["x"]
    other = np.roll(x, 1, axis=0)[:, 1:]

    def apply(variables, batch, train):
        first = jax.nn.one_hot((batch["x"][..., 0]), 41)
        ahead = jnp.concatenate([first[:, 1:], first[:, :1]], axis=1)
        return CPCOutputs(first, first, ahead[:, :, None]), {}

    model: Any = types.SimpleNamespace(apply=apply)
    context: Any = ProbeContext(config, None, model, {}, *[None] * 3)
    right = probes.predicted_right(context, "c", x, other)
    np.testing.assert_array_equal(right, x[:, 1:, 0] != other[..., 0])  # a tie is lost


def test_equal_sentences_are_not_compared(monkeypatch):
    """Runs with equal or missing second sentences give no question."""
    config = tiny(**{"probe.features": ("bag",)})
    made = load_data(config, str)
    x = np.full((3, 3, 4), -1, np.int32)
    x[:, :, 0] = [[1, 2, 3], [4, 2, 5], [6, 7, -1]]
    monkeypatch.setattr(probes, "cut_runs", lambda *_, **__: (x, np.arange(3)))
    (task,) = probes.probe_tasks(config, made)
    context: Any = ProbeContext(config, made, *[None] * 5)
    score, within_run = task.answer(context, FeatureSet("bag", None))
    assert within_run.unit == "sentence within run"
    assert within_run.outcomes.counts.tolist() == [2, 2, 0]
    # The second sentence of run 1 would be compared with the equal one of run 0.
    assert score.outcomes.counts.tolist() == [2, 1, 1]
    assert (score.low, score.high, score.outcomes.items) == (None, None, "")
    assert score.setting == "3 runs, too few for an interval"


def test_distractors_come_from_the_unit_of_the_task(monkeypatch):
    corpus = corpus_of([40, 17, 5])
    runs = cut_runs(corpus, run_sentences=8, max_words=5, most=99, seed=0)
    monkeypatch.setattr(probes, "cut_runs", lambda *_, **__: runs)
    made = types.SimpleNamespace(test=corpus)
    x, questions = probes.ask_next(tiny(), made)
    number = lambda words: np.searchsorted(corpus.sentence_starts, words[..., 0], "right")  # noqa: E731
    document = lambda words: np.searchsorted([41, 58], number(words), "right")  # noqa: E731
    for unit, (other, asked) in questions.items():
        same_document = document(other) == document(x[:, 1:])
        same_run = (number(other)[..., None] == number(x)[:, None]).any(-1)
        distance = number(other) - number(x[:, :-1])
        assert asked.any()
        if unit == "sentence":
            assert not same_run[asked].any()
            assert not same_document[asked].all()
        elif unit == "sentence within document":
            assert same_document[asked].all()
            assert not same_run[asked].any()
            assert not asked[runs[1] == 2].any(), "it has one run"
        else:
            assert same_run[asked].all()
            assert not np.isin(distance[asked], (0, 1)).any()
            assert len(np.unique(distance[asked])) > 8


def test_document_fraction_draws_runs_from_one_document():
    corpus = corpus_of([40, 30, 50, 60])
    sizes = {"run_sentences": 8, "max_words": 4, "batch_size": 40, "seed": 2}
    mixed, usual = make_runs(corpus, document_fraction=0.75, **sizes), make_runs(corpus, **sizes)
    batches = [mixed(step) for step in range(8)]
    assert all(len({*batch["utterance"][:30]}) == 1 for batch in batches)
    assert len({batch["utterance"][0] for batch in batches}) > 1
    for step, batch in enumerate(batches):
        assert len(np.unique(batch["sample"][:30])) > 12
        np.testing.assert_array_equal(batch["x"][30:], usual(step)["x"][30:])
    config = tiny(**{"data.document_fraction": 0.5})
    problem = problem_of(config)
    assert not problem.plan.is_bound, "negatives are not drawn from the marginal"
    batches = [draw(step) for draw in (problem.draw, problem.held_out.draw) for step in range(9)]
    assert all(len({*batch["utterance"][:2]}) == 1 for batch in batches)
    strict, batch = problem.held_out.draw_independent(0), problem.held_out.draw(0)
    np.testing.assert_array_equal(strict["x"][2:], batch["x"][2:])
    strict = [problem.held_out.draw_independent(step)["utterance"][:2] for step in range(9)]
    assert any(first != second for first, second in strict)


def test_cut_runs_do_not_share_sentences():
    corpus = corpus_of([40, 3, 1, 12, 17])
    cut = functools.partial(cut_runs, corpus, run_sentences=8, max_words=5)
    x, documents = cut(most=99, seed=0)
    assert sorted(documents) == [*[0] * 5, 1, 3, 3, 4, 4]
    assert sorted((x >= 0).any(-1).sum(1)) == [3, 4, *[8] * 8]
    # Sentences 43 and 72 have no successor: the only one of its document and the last of 17.
    kept = np.delete(np.arange(73), [43, 72])
    wanted = [np.arange(*corpus.sentence_starts[i : i + 2]) for i in kept]
    assert sorted(x[x >= 0]) == np.concatenate(wanted).tolist()
    chosen, _ = cut(most=4, seed=1)
    assert len(np.unique(chosen[:, 0, 0])) == len(chosen) == 4
    assert {*chosen[:, 0, 0]} < {*x[:, 0, 0]}
    assert {*cut(most=4, seed=2)[0][:, 0, 0]} != {*chosen[:, 0, 0]}


def test_word_vectors_widen_the_vocabulary(tmp_path):
    path = tmp_path / "vectors.txt"
    config = tiny(**{"probe.word_vectors": str(path), "probe.features": ("z", "vectors")})
    made = load_data(config, str)
    words, model = made.train.vocabulary.words, text.build_model(config)
    variables = init(config, model)
    table = np.asarray(variables["params"]["encoder"]["embedding"])
    rotation = np.random.default_rng(0).normal(size=(4, 4))
    rows = dict(zip(words[1:], table[1:], strict=False)) | {"fresh": table[3] + table[5]}
    lines = [[word, *map(str, np.linalg.solve(rotation.T, row))] for word, row in rows.items()]
    path.write_text("\n".join(map(" ".join, [[str(len(words)), "4"], *lines])) + "\n")
    context: Any = ProbeContext(config, made, model, variables, *[None] * 3)
    wide, wider = probes.widen(context)
    assert wide == (*words, "fresh")
    embedding = np.asarray(wider.variables["params"]["encoder"]["embedding"])
    np.testing.assert_allclose(embedding[-1], table[3] + table[5], rtol=1e-3, atol=1e-4)
    x = np.full((1, 1, 10), -1, np.int32)
    x[0, 0, 0] = len(words)
    assert np.isfinite(jax.jit(wider.model.embed)(wider.variables, x)[0]).all()
    assert probes.make_features(context, "vectors")(x[0]).shape == (1, 4)


KNOWN = data.Vocabulary(("<unk>", "one", "two", "three"), np.array([0, 3, 2, 1]))


@pytest.mark.parametrize(("content", "expected"), [
    (b"one 1 2\ntwo 3 4\nnew york 5 6\n", {"new york": [5, 6]}),
    (b"\xef\xbb\xbf3 2\r\none 1 2\r\ntwo 3 4\r\nnew york 5 6\r\n", {"new york": [5, 6]}),
    (b"new york\t5 6\none\t1 2\n\ntwo  3e0 4.0 \n", {"new york": [5, 6]}),
    ("4 2\none 1 2\ntwo 3 4\n1990 5 6\nroute 66 7 8\na\u00a0b 9 9\n".encode(),
     {"1990": [5, 6], "route 66": [7, 8], "a\u00a0b": [9, 9]}),
    (b"one 1 2\ntwo 1 x\n", "line 2"), (b"3 3\none 1 2\ntwo 1 2\n", "line 2 of .* 3 numbers"),
    (b"2 2\none .1 .2\ntwo .1 .2 .5\n", "line 3 of .* more than 2 numbers"),
    (b"2 2\none 1 2\ntw\xff 1 2\n", "line 3 of .* UTF-8"), (b"one 1 nan\ntwo 1 2\n", "line 1"),
    (b"one 1 2\n", "too few"), (b"2 3\none \0\0\x80?\ntwo " + bytes(12), "binary"),
])  # fmt: skip
def test_word_vectors_are_read_or_rejected(tmp_path, content, expected):
    (tmp_path / "v.txt").write_bytes(content)
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected) as caught:
            probes.read_vectors(tmp_path / "v.txt", KNOWN)
        assert str(caught.value).isprintable()
        return
    found = probes.read_vectors(tmp_path / "v.txt", KNOWN)
    assert found.own.tolist() == [[0, 0], [1, 2], [3, 4], [0, 0]]
    assert found.known.tolist() == [1, 2]
    assert dict(zip(found.new_words, found.others.tolist(), strict=True)) == expected


def test_embedding_a_folder_equals_embedding_each_file(tmp_path, monkeypatch):
    monkeypatch.setattr(text_embed, "MAX_SENTENCES", 8)
    config = tiny()
    model, words = text.build_model(config), load_data(config, str).train.vocabulary.words
    variables = init(config, model)
    given = {**text.describe_input(config), "words": " ".join(words)}
    pretrained = models.Pretrained(model.module, variables, given)
    for number, content in enumerate(("Topic0a common. Topic1b!", "topic3c zebra. " * 11)):
        (tmp_path / f"{number}.txt").write_text(content)
    (tmp_path / "bad.txt").write_bytes(b"topic\xff")
    (tmp_path / "none.txt").write_text("...")
    skipped = []
    made = text.embed_files(pretrained, tmp_path, ["z", "c"], skipped).features
    found = {name: one for name, one, _ in made}
    assert {name for name, _ in skipped} == {"bad", "none"}
    assert [len(found[name][one]) for name in "01" for one in "zc"] == [2, 2, 11, 11]
    x = data.encode_sentences(["topic0a common", "topic1b"], words, 10)
    expected = jax.jit(model.embed)(variables, x[None])
    for one, both in zip("zc", expected, strict=True):
        np.testing.assert_allclose(found["0"][one], both[0], rtol=1e-4, atol=1e-6)
    bare = pretrained._replace(input=text.describe_input(config))
    with pytest.raises(UserError, match="vocabulary"):
        text.embed_files(bare, tmp_path, ["c"], [])


def test_files_are_read_in_the_training_format(tmp_path):
    index = {word: i for i, word in enumerate(("the", "cat", "n't", "sat", ",", "<unk>"))}
    (tmp_path / "book.txt").write_text("the cat n't sat\ncat , <unk>\n")
    form = text.describe_input(tiny(**{"data.form": "lines"}))["form"]
    found = text_embed.read_file(tmp_path / "book.txt", index, form, True)
    assert [one.tolist() for one in found] == [[0, 1, 2, 3], [1, 4, 5]]


@pytest.mark.whole
def test_whole_run(tmp_path):
    settings = TINY | {"num_steps": 2, "log_every": 1, "eval_every": 2, "save_every": 2,
                       "model.num_offsets": 1, "probe.features": ("c", "bag")}  # fmt: skip
    flags = ("--config", "configs/text_sentences.py", *flags_of(settings))
    done = run("experiments.train", *flags, "--workdir", tmp_path)
    assert done.stdout.splitlines()[-1] == f"report: {tmp_path / 'report.html'}"
    for name in ("audit.json", "truth.json", "report.html", "vocabulary.tsv"):
        assert (tmp_path / name).exists(), name
    assert {score.features for score in read_scores(tmp_path)} == {"c", "bag"}
    card = (tmp_path / "exported/README.md").read_text()
    code = card.split("```python\n")[1].split("```")[0]
    space = {}
    exec(code.replace('"exported"', f'"{tmp_path / "exported"}"'), space)
    assert space["z"].shape == space["c"].shape == (1, 2, 8)
