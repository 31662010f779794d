"""CPC for images, where rows of patches take the place of time, in one or several directions.

The context of a direction depends on the patches up to the current row and predicts later rows.
Each direction has its own frame, a flip or transpose of the grid in which the direction is
top-down: z (b, t, lane, d), where t is the row and lane the column in this frame.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from cpc.models.layers import Dense, check_cuts, part_of, with_part
from cpc.types import CPCOutputs, Position, PyTree, UserError

#: Grids of square patches.
Patches: TypeAlias = Float[Array, "b i j y x ch"]


def patch_grid(size: tuple[int, int], patch: int, stride: int) -> tuple[int, int]:
    """Return the numbers of rows and columns of square patches in an image of `size` (y, x) pixels.

    There are (y - patch) // stride + 1 rows and (x - patch) // stride + 1 columns. Remaining pixels
    at the lower and right edges are not used.

    >>> patch_grid((256, 256), patch=64, stride=32)  # van den Oord et al. 2018, section 3.2
    (7, 7)
    """
    if patch < 1 or stride < 1:
        raise UserError(f"patch and stride must be 1 pixel or more (got {patch} and {stride})")
    if patch > min(size):
        raise UserError(f"patch is larger than the image {size} (got {patch}): decrease patch")
    rows, columns = ((side - patch) // stride + 1 for side in size)
    return rows, columns


def first_clean_offset(patch: int, stride: int) -> int:
    """Return the smallest offset at which targets share no pixels with the context.

    Patches k rows apart share patch - k stride rows of pixels. At smaller offsets, matching the
    edges of overlapping patches is enough to find the target.

    >>> first_clean_offset(patch=64, stride=32), first_clean_offset(patch=80, stride=36)
    (2, 3)
    """
    return -(-patch // stride)


def check_offsets(offsets: Sequence[int], grid: tuple[int, int], directions: Sequence[str]) -> None:
    """Check that every offset has a row to predict in each direction.

    >>> check_offsets([2, 3, 4], (7, 7), ["down", "up"])
    """
    if not offsets or min(offsets) < 1 or len(set(offsets)) < len(offsets):
        raise UserError(f"offsets are invalid (got {list(offsets)}): use distinct numbers from 1")
    for direction in directions:
        length = grid[direction in ("right", "left")]
        if max(offsets) >= length:
            raise UserError(f"offset {max(offsets)} needs more than {length} patches {direction}")


DIRECTIONS = ("down", "up", "right", "left")


def to_frame(grid: Any, direction: str) -> Any:
    """Convert an image grid (b, i, j, ...) to the frame of `direction`, (b, t, lane, ...).

    >>> to_frame(jnp.array([[[1, 2], [3, 4]]]), "left").tolist()
    [[[2, 4], [1, 3]]]
    """
    if direction in ("right", "left"):
        grid = grid.swapaxes(1, 2)
    return grid[:, ::-1] if direction in ("up", "left") else grid


def from_frame(frame: Any, direction: str) -> Any:
    """Convert the frame of `direction` (b, t, lane, ...) back to the image grid (b, i, j, ...)."""
    grid = frame[:, ::-1] if direction in ("up", "left") else frame
    return grid.swapaxes(1, 2) if direction in ("right", "left") else grid


def frame_positions(
    z: Float[Array, "b t lane d"],
    sequence: Int[Array, " b"],
    group: Int[Array, " b"] | None = None,
) -> Position:
    """Return the positions of latents in a direction's frame, with rows as time, columns as lanes.

    The arrays broadcast to (b, t, lane). In every direction, the positive of an anchor is `offset`
    rows later in the same lane, and a negative sampling rule's windows are in rows of the frame.
    `sequence` contains the index of each image in the global batch, and `group` its class.

    >>> frame_positions(jnp.zeros((1, 2, 3, 4)), jnp.array([7])).lane.tolist()
    [[[0, 1, 2]]]
    """
    _, rows, lanes, _ = z.shape
    return Position(
        sequence=sequence[:, None, None],
        time=jnp.arange(rows)[None, :, None],
        lane=jnp.arange(lanes)[None, None],
        group=jnp.zeros((1, 1, 1), jnp.int32) if group is None else group[:, None, None],
    )


class ImageCPC(nn.Module):
    """A CPC model for image patches (b, i, j, y, x, ch), with one output per direction.

    All patches share an encoder (van den Oord et al. 2018, section 3.2). Each direction has its own
    context and predictor (Henaff et al. 2019). The z of an output are the loss targets. These are
    the latents or, if `target_width` is given, each direction's own linear projection of them.

    `encoder` maps (n, y, x, ch) to (n, d). `make_context()` returns a module from (b, t, lane, d)
    to (b, t, lane, h). `make_predictor()` returns a module from the contexts to (b, t, lane, k, d),
    where d is the width of the targets.

    `cuts` split the encoder into gradient-isolated modules, as in `CPC`. Each module's targets have
    the module's own width.
    """

    encoder: nn.Module
    make_context: Callable[[], nn.Module]
    make_predictor: Callable[[], nn.Module]
    directions: Sequence[str] = ("down",)
    target_width: int | None = None
    channels: int = 3
    dtype: DTypeLike = jnp.float32
    cuts: Sequence[int] = ()
    """Numbers of encoder layers after which a module ends."""

    def __post_init__(self):
        super().__post_init__()
        given = list(self.directions)
        if not given or len(set(given)) < len(given) or not set(given) <= set(DIRECTIONS):
            names = ", ".join(DIRECTIONS)
            raise UserError(f"directions are {given}: choose distinct ones of {names}")
        if self.cuts:
            check_cuts(self.cuts, self.encoder)

    def setup(self):
        """Create each direction's modules, and include the direction in their names."""
        self.contexts = {direction: self.make_context() for direction in self.directions}
        for module, direction in self.branches:
            predictor, end = self.make_predictor(), self._suffix(module, direction)
            if module <= len(self.cuts):
                width = self.target_width or self.encoder.widths[self.cuts[module - 1] - 1]
                predictor = predictor.clone(width=width, parent=None)
            setattr(self, f"predictor{end}", predictor)
            if self.target_width is not None:
                setattr(self, f"target{end}", Dense(self.target_width, dtype=self.dtype))

    def __call__(self, x: Patches, train: bool = False) -> tuple[CPCOutputs, ...]:
        """Return each branch's targets, contexts and predictions in its direction's frame."""
        ends = self._encode_modules(x, train)
        return tuple(self._predict(ends[module - 1], module, d) for module, d in self.branches)

    @property
    def branches(self) -> list[tuple[int, str]]:
        """Return the (module, direction) pairs that have a loss term, last module first."""
        return [*itertools.product(range(len(self.cuts) + 1, 0, -1), self.directions)]

    def embed(
        self, x: Patches, train: bool = False
    ) -> tuple[Float[Array, "b i j d"], Float[Array, "b i j h"]]:
        """Return latents and the concatenated contexts of all directions, in the image grid."""
        z = self.encode(x, train)
        contexts = [from_frame(self.contexts[d](to_frame(z, d)), d) for d in self.directions]
        return z, jnp.concatenate(contexts, axis=-1)

    def encode(self, x: Patches, train: bool = False) -> Float[Array, "b i j d"]:
        """Return latents without computing contexts."""
        return self._encode_modules(x, train)[-1]

    def _encode_modules(self, x, train):
        """Return the latents (b, i, j, width) at each cut and at the end of the encoder."""
        b, i, j, *patch = x.shape
        if patch[2] != self.channels:
            raise UserError(f"images have {patch[2]} channels, not {self.channels}: set channels")
        if patch[0] != patch[1]:
            raise UserError(f"patches are {patch[0]} by {patch[1]} pixels: pass square patches")
        x = x.reshape(-1, *patch)
        ends = self.encoder.through(x, train, self.cuts) if self.cuts else [self.encoder(x, train)]
        return [z.reshape(b, i, j, -1) for z in ends]

    @property
    def num_layers(self) -> dict[str, int]:
        """Number of layers of the encoder, "z", and of each direction's context, "c"."""
        return {"z": self.encoder.num_layers, "c": self.make_context().num_layers}

    @nn.nowrap
    def upto(self, part: str, number: int, variables: PyTree) -> tuple["ImageCPC", PyTree]:
        """Truncate the encoder, "z", or contexts, "c", and its variables after `number` layers."""
        if part == "z":
            encoder, own = self.encoder.upto(number, part_of(variables, "encoder"))
            cuts = tuple(cut for cut in self.cuts if cut < number)
            return self.clone(encoder=encoder, cuts=cuts), with_part(variables, "encoder", own)
        context = self.make_context()
        for direction in self.directions:
            name = f"contexts_{direction}"
            _, own = context.upto(number, part_of(variables, name))
            variables = with_part(variables, name, own)
        return self.clone(make_context=lambda: self.make_context().upto(number, {})[0]), variables

    def _suffix(self, module, direction):
        """Return the end of the names of a branch's predictor and projection."""
        return f"_of_{module}_{direction}" if module <= len(self.cuts) else f"s_{direction}"

    def _predict(self, z, module, direction):
        z = to_frame(z, direction)
        if z.shape[1] < 2:
            raise UserError(f"direction {direction} has only one patch: use smaller patches")
        end = self._suffix(module, direction)
        c = z if module <= len(self.cuts) else self.contexts[direction](z)
        targets = z if self.target_width is None else getattr(self, f"target{end}")(z)
        predictions = getattr(self, f"predictor{end}")(c)
        if predictions.shape[-1] != targets.shape[-1]:
            widths = f"{predictions.shape[-1]} wide, but targets are {targets.shape[-1]}"
            raise UserError(f"predictions are {widths}: change the width of the predictor")
        return CPCOutputs(targets, c, predictions)
