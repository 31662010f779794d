"""Slices of a text: all of it, in order within, the same whenever they are asked for."""

import numpy as np
import pytest

from cpc.data.words import word_stream
from cpc.types import UserError


def stream(keep):
    tokens, starts = np.arange(1, 401, dtype=np.int32), np.arange(0, 401, 8)
    return word_stream(tokens, starts, keep, seed=0, steps=4, positions=16, margin=2)


def own_words(words, margin=2, epoch=0):
    """Return the words of each launch of an epoch, without its margins."""
    launches = range(epoch * words.per_epoch, (epoch + 1) * words.per_epoch)
    parts = [words.launch(i)["tokens"][:, margin:-margin] for i in launches]
    return [part[part >= 0] for part in parts]


def test_an_epoch_holds_every_word_once_and_margins_are_its_neighbours():
    words = stream(np.ones(401))
    for i in range(words.per_epoch):
        batch = words.launch(i)
        assert batch["tokens"].shape == batch["sentence"].shape == (4, 20)
        np.testing.assert_array_equal(batch["tokens"][1:, :4], batch["tokens"][:-1, -4:])
        there = batch["tokens"] >= 0
        of = (batch["tokens"][there] - 1) // 8
        pairs = np.unique([of, batch["sentence"][there]], axis=1)
        assert pairs.shape[1] == len(set(pairs[0])) == len(set(pairs[1]))
    own = own_words(words)
    assert all((np.diff(one) == 1).all() for one in own)
    np.testing.assert_array_equal(np.sort(np.concatenate(own)), np.arange(1, 401))
    assert words.words_per_launch * words.per_epoch == pytest.approx(400)


def test_a_launch_is_a_function_of_its_index_and_epochs_differ():
    words = stream(np.full(401, 0.5))
    for i in (0, 3, words.per_epoch + 1):
        for name in ("tokens", "sentence"):
            np.testing.assert_array_equal(words.launch(i)[name], words.launch(i)[name])
    first, second = (np.concatenate(own_words(words, epoch=epoch)) for epoch in (0, 1))
    assert set(first) != set(second)


def test_words_are_thinned_out_as_often_as_said():
    words = stream(np.where(np.arange(401) < 200, 0.0, 1.0))
    assert set(np.concatenate(own_words(words))) == set(range(200, 401))
    with pytest.raises(UserError, match="min_count"):
        stream(np.zeros(401))


@pytest.mark.parametrize(("steps", "positions"), [(4, 64), (3, 900), (1, 32)])
def test_small_launches_leave_nothing_out(steps, positions):
    tokens = np.arange(50_000, dtype=np.int32)
    sizes = {"seed": 0, "steps": steps, "positions": positions, "margin": 5}
    words = word_stream(tokens, np.array([0, 50_000]), np.ones(50_000), **sizes)
    np.testing.assert_array_equal(np.sort(np.concatenate(own_words(words, 5))), tokens)
