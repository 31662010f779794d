"""Slices of a text: all of it, in order within, the same whenever they are asked for."""

import numpy as np
import pytest

from cpc.data.words import word_stream
from cpc.types import UserError


def stream(keep=None, **more):
    tokens = np.arange(1, 401, dtype=np.int32)
    starts = np.arange(0, 401, 8)
    keep = np.ones(401) if keep is None else keep
    sizes = {"seed": 0, "steps": 4, "positions": 16, "margin": 2, **more}
    return tokens, starts, word_stream(tokens, starts, keep, **sizes)


def test_an_epoch_holds_every_word_once_and_margins_are_its_neighbours():
    tokens, _, words = stream()
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


def test_a_launch_is_a_function_of_its_index_and_epochs_differ():
    _, _, words = stream(keep=np.full(401, 0.5))
    for i in (0, 3, words.per_epoch + 1):
        for name in ("tokens", "sentence"):
            np.testing.assert_array_equal(words.launch(i)[name], words.launch(i)[name])
    first, second = (
        [words.launch(e * words.per_epoch + i)["tokens"].tolist() for i in range(words.per_epoch)]
        for e in (0, 1)
    )
    assert sorted(map(str, first)) != sorted(map(str, second))


def test_words_are_thinned_out_as_often_as_said():
    keep = np.where(np.arange(401) < 200, 0.0, 1.0)
    _, _, words = stream(keep=keep)
    kept = np.concatenate([words.launch(i)["tokens"][:, 2:-2].ravel()
                           for i in range(words.per_epoch)])  # fmt: skip
    assert set(kept[kept >= 0].tolist()) == set(range(200, 401))
    with pytest.raises(UserError, match="min_count"):
        stream(keep=np.zeros(401))


@pytest.mark.parametrize(("steps", "positions"), [(4, 64), (3, 900), (1, 32)])
def test_small_launches_leave_nothing_out(steps, positions):
    tokens = np.arange(50_000, dtype=np.int32)
    sizes = {"seed": 0, "steps": steps, "positions": positions, "margin": 5}
    words = word_stream(tokens, np.array([0, 50_000]), np.ones(50_000), **sizes)
    own = (words.launch(i)["tokens"][:, 5:-5].ravel() for i in range(words.per_epoch))
    seen = np.concatenate([one[one >= 0] for one in own])
    np.testing.assert_array_equal(np.sort(seen), tokens)
