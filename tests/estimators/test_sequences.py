"""The strict bound where windows overlap and clips are drawn again: each sound counts once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.estimators import Tracker, bound_over_sequences
from cpc.estimators.tracker import is_new

#: Utterance and first sample of windows of up to 3 latents of 10 samples, and how many there are.
WINDOWS = (
    (0, 0, 0), (0, 0, 3), (0, 0, 3), (0, 29, 1), (0, 30, 1), (0, 45, 3), (0, 70, 2), (0, 75, 3),
    (1, 0, 3), (1, 30, 3), (1, 12, 1), (1, 85, 3), (1, 60, 0), (1, 55, 3),
)  # fmt: skip


@pytest.mark.parametrize("wraps", [0, 2**31 - 120, 2**32 - 120], ids=["", "2^31", "2^32"])
def test_a_sequence_is_new_if_no_earlier_one_has_any_of_its_sound(wraps):
    """Against sets of samples."""
    utterance, start, number = np.array(WINDOWS).T
    window = (np.array([100, 300])[utterance] + start + wraps)[:, None]
    end = window + 10 * np.arange(1, 4)
    window, end = (x.astype(np.int64).astype(np.int32) for x in (window, end))
    heard = [{(u, first + s) for s in range(10 * count)} for u, first, count in WINDOWS]
    expected = [all(own.isdisjoint(one) for one in heard[:i]) for i, own in enumerate(heard)]
    found = jax.jit(is_new)(window, end, np.arange(3) < number[:, None])
    assert found.tolist() == expected
    assert 5 < sum(expected) < len(WINDOWS) - 3


def outputs_of(latents):
    """Two times of latents (b, d), and predictions that know the second."""
    z = jnp.stack([latents, latents], 1)
    return z, 30 * z[:, :, None]


def test_what_is_drawn_again_changes_nothing():
    """Copies are neither candidates nor anchors nor sequences of the interval."""
    z, predictions = outputs_of(np.random.default_rng(0).normal(size=(6, 4)))
    drawn = np.array([0, 1, 0, 2, 2, 3, 4, 0, 5])
    window = jnp.asarray(1000 * drawn)[:, None]
    sound = window, window + 10 * jnp.arange(1, 3)

    @jax.jit
    def both(z, predictions):
        again = bound_over_sequences(z[drawn], predictions[drawn], sound=sound)
        return bound_over_sequences(z, predictions), again

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), *both(z, predictions))


def test_few_clips_drawn_often_stay_below_the_information():
    """Of 50 classes, x = c: log 50 nats. Of 20 clips 128 windows are drawn, over many sets."""
    classes, clips, found = 50, 20, []
    run = jax.jit(lambda z, predictions, sound: bound_over_sequences(z, predictions, sound=sound))
    for seed in range(20):
        rng = np.random.default_rng(seed)
        drawn = rng.integers(clips, size=128)
        latents = np.eye(classes, dtype=np.float32)[rng.integers(classes, size=clips)[drawn]]
        window = jnp.asarray(1000 * drawn)[:, None]
        sums = run(*outputs_of(latents), (window, window + 10 * jnp.arange(1, 3)))
        found.append(Tracker(True)(jax.device_get(sums)))
    assert max(track.n[0] for track in found) <= clips
    assert 2 < np.mean([track.value[0] for track in found]) < np.log(clips)
