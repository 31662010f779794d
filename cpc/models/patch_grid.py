"""The grid of patches that an image is cut into, and which rows a context can predict."""

from collections.abc import Sequence

from cpc.types import UserError


def patch_grid(size: tuple[int, int], patch: int, stride: int) -> tuple[int, int]:
    """Return the rows and columns of square patches in an image of `size` (y, x) pixels.

    (y - patch) // stride + 1 rows and as many columns of x; a rest at the lower and right edge is
    left out.

    Raises:
      UserError: a patch larger than the image; a patch or stride below one pixel.

    >>> patch_grid((256, 256), patch=64, stride=32)  # van den Oord et al. 2018, section 3.2
    (7, 7)
    """
    if patch < 1 or stride < 1:
        raise UserError(f"patch {patch} and stride {stride} must both be at least 1 pixel")
    if patch > min(size):
        raise UserError(
            f"a patch of {patch} pixels is larger than the image of {size[0]} by {size[1]}: "
            "choose a smaller patch or larger images"
        )
    rows, columns = ((side - patch) // stride + 1 for side in size)
    return rows, columns


def first_clean_offset(patch: int, stride: int) -> int:
    """Return the least offset whose target shares no pixel with the context: ceil(patch / stride).

    Rows k apart share patch - k stride pixel rows. An offset where they do leaks: what overlaps can
    be told by comparing edges, without knowing what the image shows.

    >>> first_clean_offset(patch=64, stride=32), first_clean_offset(patch=80, stride=36)
    (2, 3)
    """
    return -(-patch // stride)


def check_offsets(offsets: Sequence[int], grid: tuple[int, int], directions: Sequence[str]) -> None:
    """Check that every offset has a row to predict in every direction.

    Raises:
      UserError: no offset; one below 1 or given twice; one that leads out of the grid.

    >>> check_offsets([2, 3, 4], (7, 7), ["down", "up"])
    """
    if not offsets or min(offsets) < 1 or len(set(offsets)) < len(offsets):
        raise UserError(f"the offsets are {list(offsets)}: give different ones from 1 upwards")
    for direction in directions:
        length = grid[direction in ("right", "left")]
        if max(offsets) >= length:
            raise UserError(
                f"offset {max(offsets)} needs more than {max(offsets)} patches going {direction}, "
                f"but the grid has {length}: lower the offsets, or cut smaller patches or strides"
            )
