"""The audit counts negatives whose input equals that of the positive."""

import numpy as np
import pytest

from experiments.training import audit
from tests.experiments.test_text import problem_of, tiny

ANCHORS, NEGATIVES = "anchors_with_false_negatives_by_content", "false_negatives_by_content"


def sentences(every_second):
    """Return 4 runs of 6 sentences; all differ, except every second one if requested."""
    x = np.arange(4 * 6 * 4, dtype=np.int32).reshape(4, 6, 4) % 50
    x[..., 0] = np.arange(24).reshape(4, 6)
    if every_second:
        x[:, ::2] = 7
    row = np.arange(4, dtype=np.int32)
    return {"x": x, "sequence": row, "utterance": row, "sample": row * 100}


def test_equal_sentences_are_false_negatives():
    drawn = problem_of(tiny())
    rows = []
    for every_second in (False, True):
        batch = {**drawn.draw(0), **sentences(every_second)}
        made = audit.audit_problem(drawn._replace(draw=lambda step, batch=batch: batch))
        rows.append({row.name: row.value for row in made})
        assert rows[-1]["accidental_hits"] == 0
    names = [row.name for row in audit._named("phone", made, only_false=True)]
    assert len(names) == sum("false_negatives" in row.name for row in made)
    different, alike = rows
    assert different[ANCHORS] == different[NEGATIVES] == 0
    assert alike[ANCHORS] == pytest.approx(0.5, abs=0.11)
    assert 0.1 < alike[NEGATIVES] < 0.4


@pytest.mark.parametrize(
    ("size", "shape", "direction"),
    [((3, 41, 2), (3, 4), "forward"), ((3, 4, 4, 8, 8, 3), (3, 4, 4), "up")],
)  # fmt: skip
def test_equal_inputs_have_equal_content_ids(size, shape, direction):
    rng = np.random.default_rng(0)
    x = rng.normal(size=size).astype(np.float32)
    assert len(np.unique(audit.content_ids(x, shape, direction))) == np.prod(shape)
    assert len(np.unique(audit.content_ids(0 * x, shape, direction))) == 1
    x[2] = x[0]
    ids = audit.content_ids(x, shape, direction)
    np.testing.assert_array_equal(ids[2], ids[0])
    assert len(np.unique(ids)) == 2 * np.prod(shape[1:])


def test_content_ids_follow_the_direction():
    x = np.random.default_rng(1).normal(size=(2, 3, 3, 4)).astype(np.float32)
    x[1, 2, 0] = x[0, 0, 1]
    ids = audit.content_ids(x, (2, 3, 3), "right")  # times are image columns
    assert (ids[1, 0, 2], len(np.unique(ids))) == (ids[0, 1, 0], 17)
    # Inputs of another length have no id.
    assert (audit.content_ids(np.zeros((3, 2)), (3, 4), "forward") == -1).all()
