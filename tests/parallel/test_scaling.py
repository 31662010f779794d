"""The arithmetic of many devices against the programs that are compiled for them."""

import pytest

from experiments.bench import scaling

SIZE = {"b": 8, "length": 4, "width": 16, "offsets": 2}


@pytest.mark.parametrize("p", [2, 8])
def test_gather_moves_keys_once_and_gradients_once(p):
    """One of each in the whole program, however many offsets: n d numbers, and n d / p."""
    found = scaling.collectives(scaling.compile_criterion("gather", p, **SIZE).as_text())
    n = SIZE["b"] * SIZE["length"] * SIZE["width"]
    assert found.pop("all-gather") == [n]
    assert found.pop("reduce-scatter") == [n // p]
    assert not found
    cost = scaling.criterion_cost("gather", p, n // p // SIZE["width"], 2, SIZE["width"])
    assert cost.sent_bytes == 4 * (p - 1) * (n // p + n // p)


def test_ring_moves_shares():
    """Three permutes in the loops and one home, each of n d / p numbers, and nothing gathered."""
    p = 4
    found = scaling.collectives(scaling.compile_criterion("ring", p, **SIZE).as_text())
    share = SIZE["b"] * SIZE["length"] * SIZE["width"] // p
    assert found == {"collective-permute": [share] * 4}
    cost = scaling.criterion_cost("ring", p, share // SIZE["width"], 2, SIZE["width"])
    assert cost.sent_bytes == 4 * share * (3 * p + 1)


@pytest.mark.parametrize(("form", "p", "times"), [("gather", 4, 1), ("ring", 4, 4)])
def test_products_are_the_compilers(form, p, times):
    """To 5 %: its count has the elementwise work, too. The body of the ring's loop it takes once.

    With one offset and all of a device's anchors in one block nothing else loops.
    """
    size = {"b": 8, "length": 8, "width": 512, "offsets": 1}
    counted = scaling.compile_criterion(form, p, **size).cost_analysis()["flops"]
    cost = scaling.criterion_cost(form, p, 8 * 8 // p, 1, 512)
    assert cost.flop < times * counted < 1.05 * cost.flop


def test_rows_name_what_binds():
    rows = {row.figures["form"]: row for row in scaling.scaling_rows()}
    assert rows["ring"].figures["held_megabytes"] < 10
    assert all(row.figures["binds"] in row.text for row in rows.values())
    assert rows["gather"].figures["criterion_gflop"] == pytest.approx(
        6 * 12 * 1024 * 8192 * 512 / 1e9
    )
