"""The bitrate of codes against counts by hand, and of features that never repeat."""

import math

import numpy as np
import pytest

from cpc.evaluate import code_entropy, code_scores


def test_the_entropy_is_that_of_counted_codes():
    rng = np.random.default_rng(0)
    book, codes = rng.normal(size=(5, 3)).astype("f"), rng.integers(0, 5, 1000)
    p = np.bincount(codes) / 1000
    entropy, number = code_entropy(book[codes])
    assert entropy == pytest.approx(-(p * np.log2(p)).sum())
    assert number == 5


def test_one_code_takes_no_bits_and_zero_is_one_number():
    assert code_entropy(np.ones((9, 2), "f")) == (0.0, 1)
    assert code_entropy(np.array([[0.0], [-0.0]], "f")) == (0.0, 1)


def test_bits_a_second_are_those_of_a_frame_times_frames():
    frames = [np.float32([[1], [2]]), np.float32([[3], [4], [1], [2], [3], [4]])]
    rate, perplexity = code_scores(frames, 0.02, data="toy", features="z")
    assert rate.value == pytest.approx(2 * 50)
    assert perplexity.value == pytest.approx(4)
    assert (rate.metric, rate.unit, rate.higher_is_better) == ("bits per second", "second", False)
    assert rate.setting == "4 codes in 8 frames"


def test_features_that_never_repeat_take_the_logarithm_of_their_number():
    noise = np.random.default_rng(0).normal(size=(64, 7)).astype("f")
    rate, _ = code_scores([noise], 0.01, data="toy", features="c")
    assert rate.value == pytest.approx(100 * math.log2(64))
