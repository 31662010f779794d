"""Slices of a text: all of it, in order within, the same whenever they are asked for."""

import numpy as np
import pytest

from cpc.data import words as module
from cpc.data.words import word_stream
from cpc.types import UserError


def stream(monkeypatch, keep=None, grain=16, **more):
    monkeypatch.setattr(module, "GRAIN", grain)
    tokens = np.arange(1, 401, dtype=np.int32)
    starts = np.arange(0, 401, 8)
    keep = np.ones(401) if keep is None else keep
    sizes = {"seed": 0, "steps": 4, "positions": 16, "margin": 2, **more}
    return tokens, starts, word_stream(tokens, starts, keep, **sizes)


def test_an_epoch_holds_every_word_once_and_margins_are_its_neighbours(monkeypatch):
    tokens, _, words = stream(monkeypatch)
    seen = []
    for i in range(words.per_epoch):
        batch = words.launch(i)
        assert batch["tokens"].shape == batch["sentence"].shape == (4, 20)
        own = batch["tokens"][:, 2:-2].ravel()
        seen.append(own[own >= 0])
        np.testing.assert_array_equal(batch["tokens"][1:, :4], batch["tokens"][:-1, -4:])
        assert (np.diff(own[own >= 0]) == 1).all()
        there = batch["tokens"] >= 0
        of = (batch["tokens"][there] - 1) // 8
        assert len(set(zip(of.tolist(), batch["sentence"][there].tolist(), strict=True))) == len(
            set(of.tolist())
        )
    np.testing.assert_array_equal(np.sort(np.concatenate(seen)), tokens)
    assert words.words_per_launch * words.per_epoch == pytest.approx(400)


def test_a_launch_is_a_function_of_its_index_and_epochs_differ(monkeypatch):
    _, _, words = stream(monkeypatch, keep=np.full(401, 0.5))
    for i in (0, 3, words.per_epoch + 1):
        for name in ("tokens", "sentence"):
            np.testing.assert_array_equal(words.launch(i)[name], words.launch(i)[name])
    first, second = (
        [words.launch(e * words.per_epoch + i)["tokens"].tolist() for i in range(words.per_epoch)]
        for e in (0, 1)
    )
    assert sorted(map(str, first)) != sorted(map(str, second))


def test_words_are_thinned_out_as_often_as_said(monkeypatch):
    keep = np.where(np.arange(401) < 200, 0.0, 1.0)
    _, _, words = stream(monkeypatch, keep=keep)
    kept = np.concatenate([words.launch(i)["tokens"][:, 2:-2].ravel()
                           for i in range(words.per_epoch)])  # fmt: skip
    assert set(kept[kept >= 0].tolist()) == set(range(200, 401))


def test_a_text_of_which_nothing_stays_is_refused(monkeypatch):
    with pytest.raises(UserError, match="no two words"):
        stream(monkeypatch, keep=np.zeros(401))
