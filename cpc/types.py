"""The words that everything else shares.

Axis letters have one meaning everywhere, in einsum, annotations and comments:

    b batch          s raw samples    t latent time        k offset, 1-based as in the paper
    i j patch row and column          y x pixels           d latent width    h context width
    m anchors        n candidates

Symbols are the paper's: x the input, z the latents, c the contexts, W_k the predictor of offset k.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

Array: TypeAlias = jax.Array
ArrayLike: TypeAlias = jax.Array | np.ndarray
PyTree: TypeAlias = Any

#: One batch on its way to the device, arrays by name: "x" the inputs, "sequence" the row in the
#: global batch, and what else the source knows of a row, such as "speaker" of sound (the group of
#: `Position`) or "label" of an image. All rows are real; "num_samples" says how much of each is,
#: where some are shorter than the others and filled up.
Batch: TypeAlias = dict[str, Any]


class Position(NamedTuple):
    """Where a latent comes from: int32 arrays of one shape, one entry a latent.

    Negative rules look at positions and at nothing else: `rule(anchor, candidate, offset) -> bool`,
    where the two positions broadcast against each other.
    """

    sequence: ArrayLike
    """The recording's window, or the image: its row in the global batch."""
    time: ArrayLike
    """Latent time, or the patch row."""
    lane: ArrayLike
    """The patch column; 0 for audio."""
    group: ArrayLike
    """The speaker, or any class whose sharing the sampler controls."""

    @classmethod
    def grid(
        cls, num_sequences: int, num_times: int, num_lanes: int | None = None, *, group: Any = None
    ) -> "Position":
        """Return the positions of all latents of a batch, as NumPy arrays of the latents' shape.

        `grid(b, t)` fits latents (b, t, d) of sequences, `grid(b, i, j)` latents (b, i, j, d) of
        images: patch rows count as times and patch columns as lanes.

        Args:
          num_sequences: b, windows or images in the batch.
          num_times: t latents in a sequence, or patch rows in an image.
          num_lanes: patch columns in an image; leave it out for sequences.
          group: speaker or class of each sequence, (b,); by default each sequence is its own group.

        >>> Position.grid(2, 3).sequence
        array([[0, 0, 0],
               [1, 1, 1]], dtype=int32)
        >>> Position.grid(2, 3).time
        array([[0, 1, 2],
               [0, 1, 2]], dtype=int32)
        """
        shape = (num_sequences, num_times, *(() if num_lanes is None else (num_lanes,)))
        for size in shape:
            check_type("a size of Position.grid", size, int | np.integer, "pass whole numbers")
        if min(shape) < 1:
            raise UserError(
                f"Position.grid has an empty axis (got {shape}): pass sizes of 1 or more"
            )
        if group is not None and np.shape(group) != (num_sequences,):
            raise UserError(
                f"group does not match {num_sequences} sequences (got shape {np.shape(group)}): "
                "pass one entry per sequence"
            )
        sequence, time, *lane = np.indices(shape, np.int32)
        if group is not None:
            group = np.reshape(group, (-1, *(1,) * (len(shape) - 1))).astype(np.int32)
            group = group + 0 * sequence
        lanes = lane[0] if lane else np.zeros_like(sequence)
        return cls(sequence, time, lanes, sequence if group is None else group)


class SoundPosition(NamedTuple):
    """A `Position` that also tells which sound the latent is of, for rules that ask.

    Its places are samples on a line of all recordings, one after the other, modulo 2^32.
    """

    sequence: ArrayLike
    time: ArrayLike
    lane: ArrayLike
    group: ArrayLike
    sample: ArrayLike
    """Where the latent's sound begins: that of its frame or, if it is a segment, of its frames."""
    end: ArrayLike
    """The first sample after it."""
    window: ArrayLike
    """Where its window begins."""


AnyPosition: TypeAlias = Position | SoundPosition


def is_positive(anchor: AnyPosition, candidate: AnyPosition, offset: Any) -> Any:
    """Return whether the candidate is the positive: the latent that the anchor predicts."""
    return (
        (anchor.sequence == candidate.sequence)
        & (anchor.lane == candidate.lane)
        & (anchor.time + offset == candidate.time)
    )


def is_aligned(anchor: AnyPosition, candidate: AnyPosition, offset: Any) -> Any:
    """Return whether the candidate has the positive's lane and time, in whatever sequence."""
    return (anchor.lane == candidate.lane) & (anchor.time + offset == candidate.time)


#: rule(anchor, candidate, offset) -> bool array: may the candidate be a negative of the anchor?
NegativeRule: TypeAlias = Callable[[Any, Any, Any], Any]


@dataclasses.dataclass(frozen=True)
class Rule:
    """A negative rule(anchor, candidate, offset) -> bool, and what of its structure saves work.

    The positive is never a negative, under any rule. Rules join with `&`. `aligned` and
    `shard_size` say what `allows` implies: `cpc_loss` then leaves out the pairs that they exclude,
    and the loss is the same.

    >>> late = Rule("late", lambda anchor, candidate, offset: candidate.time > 5)
    >>> (late & late).name
    'late & late'
    """

    name: str
    allows: NegativeRule
    independent: bool | None = None
    """True: the negatives are independent of the anchor and of each other, if windows are drawn
    independently. False: they depend on the anchor's content. None: as independent as whatever
    other rules leave."""
    aligned: bool = False
    """Whether every negative has the time and lane of the positive."""
    shard_size: int | None = None
    """Negatives come from the anchor's own shard: sequence // shard_size is the same."""

    def __post_init__(self) -> None:
        """Take over the docstring of `allows`, so that `help` describes this rule."""
        check_function("allows", self.allows, 3, "pass a function (anchor, candidate, offset)")
        object.__setattr__(self, "__doc__", self.allows.__doc__ or type(self).__doc__)

    @property
    def is_bound(self) -> bool:
        """Whether log N - L is a lower bound on mutual information under this rule.

        Of all negatives that it allows, or a subset of them; a sampler that repeats or adds some
        (`cpc.negatives.uniform_draws`, `with_zero`) leaves an estimate.
        If all windows of a batch are one group's, it bounds the information given the group.
        """
        return self.independent is True

    def __call__(self, anchor: AnyPosition, candidate: AnyPosition, offset: Any) -> Any:
        """Return True where the candidate may be a negative of the anchor."""
        return self.allows(anchor, candidate, offset) & ~is_positive(anchor, candidate, offset)

    def __and__(self, other: "Rule") -> "Rule":
        """Join two rules; fewer independent negatives are still independent."""
        check_type("the right side of &", other, Rule, "wrap a function as Rule(name, function)")
        both = (self.independent, other.independent)
        sizes = [size for size in (self.shard_size, other.shard_size) if size is not None]
        return Rule(
            f"{self.name} & {other.name}",
            lambda *args: self.allows(*args) & other.allows(*args),
            independent=False if False in both else True if True in both else None,
            aligned=self.aligned or other.aligned,
            shard_size=min(sizes, default=None),
        )


#: choose(rng, positive (m,), negatives (m, n), where (m, n)) -> (negatives, where), both
#: (m, n') for some n'. It picks among the scores of the allowed negatives. Row i depends on row i
#: alone, apart from the randomness; gradients flow into the scores, not into the choice.
NegativeSampler: TypeAlias = Callable[[Any, Any, Any, Any], tuple[Any, Any]]


class CPCOutputs(NamedTuple):
    """What a CPC model computes from a batch."""

    z: Array
    """Latents (b, t, d)."""
    c: Array
    """Contexts (b, t, h); c[:, t] has seen the latents up to and including t."""
    predictions: Array
    """W_k c (b, t, k, d): entry i predicts the latent offsets[i] steps ahead (audio: i + 1)."""


def check_type(name: str, value: Any, kinds: Any, fix: str) -> None:
    """Check that an argument is of one of the types."""
    if not isinstance(value, kinds):
        got = repr(value) if isinstance(value, str | int | float) else type(value).__name__
        raise UserError(f"{name} has the wrong type (got {got}): {fix}")


def check_array(name: str, value: Any, kind: Any = np.number) -> None:
    """Check that an argument is an array of real numbers, or of one kind of them."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        fix = "pass a JAX or NumPy array"
        raise UserError(f"{name} is not an array (got {type(value).__name__}): {fix}")
    if not jnp.issubdtype(dtype, kind) or jnp.issubdtype(dtype, np.complexfloating):
        numbers = "integers" if kind is np.integer else "real numbers"
        raise UserError(f"{name} does not hold {numbers} (got {dtype}): pass an array of {numbers}")


def check_function(name: str, value: Any, num_arguments: int, fix: str) -> None:
    """Check that an argument is a function that can be called with so many arguments."""
    check_type(name, value, Callable, fix)
    try:
        inspect.signature(value).bind(*range(num_arguments))
    except TypeError as error:
        called = getattr(value, "__name__", type(value).__name__)
        problem = f"{name} cannot be called with {num_arguments} arguments"
        raise UserError(f"{problem} (got {called}, {error}): {fix}") from None
    except ValueError:  # a builtin without a signature
        pass


class Item(NamedTuple):
    """A token of a phone in a recording: a line of an item file of ZeroSpeech."""

    file: str
    """Name of the recording, without ending."""
    onset: float
    """Where the token begins, in seconds; it often spans the phones beside it, too."""
    offset: float
    """Where it ends."""
    phone: str
    before: str
    """The phone before it: with the one after it, the context."""
    after: str
    speaker: str


class UserError(Exception):
    """A mistake in a config, a path or a file: one sentence that says what is wrong and what to do.

    The commands print it without a traceback and exit with status 2.
    """
