import itertools

import numpy as np
import pytest

from cpc.data import make_items, read_items, write_items
from cpc.evaluate.abx import (
    abx_score,
    cell_errors,
    cell_weights,
    cut_tokens,
    dtw_distances,
    make_cells,
)
from cpc.types import Item, UserError
from tests.goldens.goldens import load_golden

GOLDEN, CASES = load_golden("abx.npz")


def naive_dtw(d):
    """Return Libri-light's recursion in plain Python; ties prefer the diagonal, then the left."""
    n, m = d.shape
    cost = np.full((n, m), np.inf, np.float32)
    for i in range(n):
        for j in range(m):
            before = [
                cost[i - 1, j - 1] if i and j else np.inf,
                cost[i, j - 1] if j else np.inf,
                cost[i - 1, j] if i else np.inf,
            ]
            cost[i, j] = d[i, j] + (min(before) if i or j else 0)
    i, j, length = n - 1, m - 1, 1
    while i or j:
        if i and j and cost[i - 1, j - 1] <= min(cost[i, j - 1], cost[i - 1, j]):
            i, j = i - 1, j - 1
        elif j and (not i or cost[i, j - 1] <= cost[i - 1, j]):
            j -= 1
        else:
            i -= 1
        length += 1
    return cost[-1, -1] / np.float32(length)


def test_dtw_of_pairs_of_any_length():
    rng = np.random.default_rng(0)
    tokens = [rng.normal(size=(n, 5)).astype(np.float32) for n in (1, 2, 9, 17, 40)]
    pairs = np.array(list(itertools.product(range(5), repeat=2)))
    found = dtw_distances(tokens, pairs)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in tokens]
    for (i, j), own in zip(pairs, found, strict=True):
        d = np.arccos(np.clip(unit[i] @ unit[j].T, -1, 1)) / np.pi
        np.testing.assert_allclose(own, naive_dtw(d), atol=1e-4 if i == j else 1e-6)
    assert dtw_distances(tokens, np.zeros((0, 2), int)).shape == (0, 2)


def read_case(tmp_path, which):
    inputs = CASES[which][1]
    path = tmp_path / "x.item"
    path.write_text(str(inputs["items"]))
    return read_items(path), {name: x for name, x in inputs.items() if name != "items"}


def average(cells, errors):
    return cell_weights(cells) @ [error.mean() for error in errors]


@pytest.mark.parametrize(
    ("which", "how"), [(which, how) for which, case in CASES.items() for how in case[0]]
)
def test_errors_equal_zerospeech(tmp_path, which, how):
    """Values of EvalABX().eval_abx of zerospeech-libriabx2 0.9.8, with all of its draws.

    Its files were listed in the order of the item file, with an empty module instead of torchaudio.
    Features are real, "zeros" (all frames zero) or "ties" (frames along two axes).
    """
    distance, speakers, contexts, max_tokens, max_speakers = how.split()
    items, features = read_case(tmp_path, which)
    tokens = cut_tokens(items, features, 0.01, lose_last_frame=True)
    options = {"across": speakers == "across", "in_context": contexts == "within"}
    limits = {"max_tokens": int(max_tokens), "max_speakers": int(max_speakers)}
    cells = list(make_cells(items, [len(token) > 0 for token in tokens], **options, **limits))
    errors = cell_errors(tokens, cells, "angular" if distance == "cosine" else "euclidean")
    assert average(cells, errors) == pytest.approx(CASES[which][0][how], abs=1e-5)


#: Errors in % within and across speakers, each in the same context and in any.
FASTABX = 17.091397, 17.275213, 17.254118, 16.597411


def test_errors_equal_fastabx(tmp_path):
    """Values of zerospeech_abx of fastabx 0.9.0 without subsampling."""
    items, features = read_case(tmp_path, "real")
    tokens = cut_tokens(items, features, 0.01)
    limits, errors = {"max_tokens": 10**6, "max_speakers": 10**6}, []
    for across, in_context in itertools.product((False, True), (True, False)):
        options = {"across": across, "in_context": in_context, **limits}
        cells = list(make_cells(items, [True] * len(items), **options))
        errors.append(100 * average(cells, cell_errors(tokens, cells)))
    assert errors == pytest.approx(FASTABX, abs=1e-4)


@pytest.mark.parametrize(("onset", "offset", "frame_seconds", "first", "stop"), [
    (0.275, 0.5, 0.01, 28, 50),  # 100 * 0.275 - 0.5 is above 27
    (0.215, 0.235, 0.01, 21, 24),  # 100 * 0.235 - 0.5 is not below 23
    (0.43, 0.59, 0.02, 21, 30),
    (0.00625, 0.01875, 0.0125, 0, 2),
    (0.004, 0.016, 0.01, 0, 2),  # centered at 5, 15 and 25 ms
])  # fmt: skip
def test_frame_limits_are_rounded_like_the_reference(onset, offset, frame_seconds, first, stop):
    items, features = [Item("u", onset, offset, *"abcd")], {"u": np.arange(60.0)[:, None]}
    (token,) = cut_tokens(items, features, frame_seconds)
    assert (token[0, 0], token[-1, 0] + 1) == (first, stop)


def toy(count=6, speakers=("s", "t")):
    rng = np.random.default_rng(0)
    items = [Item("u", 0.0, 0.1, phone, "x", "y", s) for s in speakers for phone in "ab" * count]
    return items, [rng.normal(size=(8, 4)).astype(np.float32) for _ in items]


def test_cells_across_and_within_speakers():
    items, _ = toy(1, speakers=("s",))
    assert not list(make_cells(items, [True] * 2))
    assert not list(make_cells(items, [True] * 2, across=True))
    items, _ = toy(1)
    cells = list(make_cells(items, [True] * 4, across=True))
    assert [(cell.speaker, cell.pair, cell.a, cell.b, cell.x) for cell in cells] == [
        ("s", ("a", "b"), (0,), (1,), (2,)), ("s", ("b", "a"), (1,), (0,), (3,)),
        ("t", ("a", "b"), (2,), (3,), (0,)), ("t", ("b", "a"), (3,), (2,), (1,)),
    ]  # fmt: skip
    assert not list(make_cells(items, [True, True, False, False], across=True))


def test_score_has_outcomes_per_utterance():
    items, tokens = toy(20)
    items = [item._replace(file=f"u{n % 3}") for n, item in enumerate(items)]
    cells = list(make_cells(items, [True] * len(items)))
    score = abx_score(items, tokens, cells, data="toy", features="c", method="within speaker")
    assert score.outcomes is not None
    assert score.outcomes.sums.sum() / score.outcomes.counts.sum() == pytest.approx(score.value)
    assert len(score.outcomes.sums) == 3
    errors = average(cells, cell_errors(tokens, cells))
    assert score.value == pytest.approx(errors)
    assert score.low <= score.value <= score.high
    assert not score.higher_is_better
    assert (score.chance, score.num_test) == (0.5, 2)


def test_item_files_round_trip(tmp_path):
    path = tmp_path / "u.item"
    labels = {"u": np.array([0, 0, 1, 2, 2, 3, 1, -1, 1, 2, 0])}
    names = ["a", "b", "c", "sil"]
    items = list(make_items(labels, names, {"u": "s"}))
    assert [(i.onset, i.offset, i.before + i.phone + i.after) for i in items] == [
        (0.0, 0.05, "abc"), (0.08, 0.11, "bca")
    ]  # fmt: skip
    write_items(path, items)
    assert read_items(path) == items
    first, second = path.read_text().splitlines()[:2]
    assert first == "#file onset offset #phone prev-phone next-phone speaker"
    assert second == "u 0.0000 0.0500 b a c s"
    # LibriSpeech has speakers with first and last names.
    write_items(path, [Item("u", 0.0, 0.1, "b", "a", "c", "Bob  Ray")])
    assert read_items(path)[0].speaker == "Bob_Ray"
    with pytest.raises(UserError, match="my file"):
        write_items(path, [Item("my file", 0.0, 0.1, "b", "a", "c", "bob")])
    path.write_text("\n#file ...\nu 0 1 a b c s\n\nu 1 2 a b c s\n \n")
    assert [item.onset for item in read_items(path)] == [0, 1]


@pytest.mark.parametrize(("line", "message"), [
    ("u 0.1 0.2 a b c", "line 2: .*6 fields"),
    ("u 0.1 x a b c s", "line 2: .*0.1 s to x s"),
    ("\nu 0.2 0.2 a b c s", "line 3: .*0.2 s to 0.2 s"),
    ("u -1 0.2 a b c s", "line 2: .*-1 s"),
    ("u 0.1 inf a b c s", "line 2: .*0.1 s to inf s"),
    ("", "lists no items"),
])  # fmt: skip
def test_invalid_item_lines_are_named(tmp_path, line, message):
    path = tmp_path / "x.item"
    path.write_text(f"#file onset offset #phone prev-phone next-phone speaker\n{line}\n")
    with pytest.raises(UserError, match=rf"x\.item.* {message}"):
        read_items(path)
    with pytest.raises(UserError, match=r"none\.item"):
        read_items(tmp_path / "none.item")


def test_items_beyond_a_recording_are_named():
    features = {"u": np.zeros((50, 2)), "w": np.zeros((49, 2))}
    for file, onset, offset, match in (
        ("v", 0.5, 0.6, r"x\.item: v from 0\.5 s"),
        ("u", 0.5, 0.6, r"u from 0\.5 s to 0\.6 s .* 50"),
        ("w", 0.2, 0.7, "49"),
    ):
        with pytest.raises(UserError, match=match):
            cut_tokens([Item(file, onset, offset, *"abcs")], features, 0.01, source="x.item")
    assert len(cut_tokens([Item("w", 0.2, 0.55, *"abcs")], features, 0.01)[0]) == 29
