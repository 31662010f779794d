"""How much memory the loss needs, from its shapes alone; no device is asked for its size."""

from cpc.losses.masking import check
from cpc.losses.tiles import block_size, num_columns
from cpc.types import UserError

#: Of a score while its block is at work: the score, its derivative and that one's transpose.
SCORE_BYTES = 12


def loss_bytes(
    num_anchors: int,
    num_candidates: int,
    width: int,
    *,
    num_offsets: int = 1,
    num_sequences: int = 1,
    block: int | None = None,
    columns: int | None = None,
    itemsize: int = 4,
) -> int:
    """About the bytes that value and gradient of a loss over all candidates hold at once.

    B = 12 r c + 4 k n d + i (n d + 2 k m d): a tile of r anchors' scores of c candidates, float32
    gradients of the keys for each offset, whose weights come only with the backward pass, and the
    keys, the queries and the queries' gradients. What XLA counts is 0.8 to 1.2 of it.

    Args:
      num_anchors: m, all that a device scores at one offset.
      num_candidates: n, all that a device holds, those of a queue included.
      width: d.
      num_offsets: k; 1 for `streaming_info_nce`.
      num_sequences: of the anchors; `cpc_loss` scores at least one anchor of each at a time.
      block: anchors scored at a time, as passed to the loss; what it chooses, by default.
      columns: as passed to the loss; n for losses that keep whole rows, which are all but InfoNCE
        of all negatives.
      itemsize: i, bytes of a number of keys and queries.

    Raises:
      UserError: block or columns below 1.

    >>> loss_bytes(4, 8, 2)  # 12 * 32 + 4 * 16 + 4 * (16 + 2 * 8)
    576
    """
    block = block_size(num_candidates, columns) if block is None else block
    check("block", block, least=1)
    each = -(-num_anchors // num_sequences)
    rows = num_sequences * min(each, max(1, block // num_sequences))
    scores = SCORE_BYTES * rows * num_columns(rows, num_candidates, columns)
    keys, queries = num_candidates * width, num_offsets * num_anchors * width
    return scores + 4 * num_offsets * keys + itemsize * (keys + 2 * queries)


def largest_block(num_candidates: int, num_bytes: int) -> int:
    """Anchors whose scores of all candidates fit a memory; pass it as `block`.

    A score takes 12 bytes while its block is at work: scores, derivatives and their transpose.

    Raises:
      UserError: not one anchor fits.

    >>> largest_block(131_072, 2**30)
    682
    """
    block = num_bytes // (SCORE_BYTES * max(num_candidates, 1))
    if block < 1:
        raise UserError(
            f"{num_bytes} bytes do not hold one anchor's scores of {num_candidates} candidates: "
            f"give it {SCORE_BYTES * num_candidates} or more, or cut the candidates with columns"
        )
    return block
