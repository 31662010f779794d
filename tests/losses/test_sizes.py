"""Memory by arithmetic against what the compiler counts."""

import jax
import jax.numpy as jnp
import pytest

from cpc.losses import cpc_loss, largest_block, loss_bytes, negative_sampling
from cpc.losses.tiles import block_size, num_columns
from cpc.negatives import batch
from cpc.types import CPCOutputs, Position, UserError

#: A loss that keeps whole rows.
SAMPLING = {"loss": negative_sampling}


@pytest.mark.parametrize(
    ("b", "t", "k", "d", "options"),
    [
        (4, 64, 4, 256, {"block": 64}),  # gradients of the keys, and queries
        (4, 256, 1, 8, {"block": 1024}),  # scores
        (4, 256, 1, 8, {"block": 512, "columns": 256}),  # a tile of them
        (64, 16, 1, 8, {"block": 1, **SAMPLING}),  # at least one anchor of each window
    ],
)
def test_as_much_as_the_compiler_counts(b, t, k, d, options):
    at = Position(jnp.arange(b)[:, None], jnp.arange(t)[None], *[jnp.zeros((1, 1), int)] * 2)
    z, predictions = jnp.zeros((b, t, d)), jnp.zeros((b, t, k, d))

    def loss(z, predictions):
        return cpc_loss(CPCOutputs(z, z, predictions), at, batch, **options)[0]

    counted = jax.jit(jax.grad(loss, (0, 1))).lower(z, predictions).compile().memory_analysis()
    counted = counted.temp_size_in_bytes + counted.argument_size_in_bytes
    columns = b * t if "loss" in options else options.get("columns")
    sizes = {"num_offsets": k, "num_sequences": b, "block": options["block"], "columns": columns}
    assert counted == pytest.approx(loss_bytes(b * t, b * t, d, **sizes), rel=0.25)


def test_a_block_that_fits_is_the_largest():
    rest = loss_bytes(10_000, 10_000, 16, block=1) - 12 * 10_000
    block = largest_block(10_000, 2**25 - rest)
    whole = {"columns": 10_000}
    assert loss_bytes(10_000, 10_000, 16, block=block, **whole) <= 2**25
    assert loss_bytes(10_000, 10_000, 16, block=block + 1, **whole) > 2**25


def test_bad_sizes():
    with pytest.raises(UserError, match="block is 0"):
        loss_bytes(4, 4, 2, block=0)
    with pytest.raises(UserError, match="columns is 0"):
        loss_bytes(4, 4, 2, columns=0)
    with pytest.raises(UserError, match="give it 1200 or more"):
        largest_block(100, 1199)


@pytest.mark.parametrize(
    ("num_candidates", "anchors"), [(100, 8192), (2**17, 2048), (2**19, 512), (10**6, 8192)]
)
def test_blocks_of_an_accelerator_keep_rows_whole_or_are_large(
    num_candidates, anchors, monkeypatch
):
    assert block_size(num_candidates) == max(512, 2**19 // num_candidates)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert block_size(num_candidates) == anchors
    assert block_size(num_candidates, num_candidates) == min(8192, 2**28 // num_candidates)
    columns = num_columns(anchors, num_candidates, None)
    assert columns == (num_candidates if num_candidates <= 2**19 else 8192)
