"""Shared types: axis names, positions, negative rules, model outputs and errors.

Axis letters have the same meaning in all einsum strings, annotations and comments:

    b batch          s raw samples    t latent time        k offset, 1-based as in the paper
    i j patch row and column          y x pixels           d latent width    h context width
    m anchors        n candidates

Symbols follow the paper: x the input, z the latents, c the contexts, W_k the predictor of offset k.
"""

import dataclasses
import inspect
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

Array: TypeAlias = jax.Array
ArrayLike: TypeAlias = jax.Array | np.ndarray
PyTree: TypeAlias = Any

#: Arrays of a batch by name: "x" the inputs, "sequence" the index in the global batch, and further
#: labels from the data source, such as "speaker" for sound (the group of `Position`) or "label" for
#: images. "num_samples" is the length of each row before padding, if rows differ in length.
Batch: TypeAlias = dict[str, Any]


class Position(NamedTuple):
    """Positions of latents in a batch: int32 arrays of one shape, one entry per latent.

    Positions are the only input of negative rules, `rule(anchor, candidate, offset) -> bool`, which
    broadcast the two positions against each other.
    """

    sequence: ArrayLike
    """Index of the window or image in the global batch."""
    time: ArrayLike
    """Latent time, or patch row."""
    lane: ArrayLike
    """Patch column; 0 for audio."""
    group: ArrayLike
    """Speaker, or any other class that sequences may share."""

    @classmethod
    def grid(
        cls, num_sequences: int, num_times: int, num_lanes: int | None = None, *, group: Any = None
    ) -> "Position":
        """Return the positions of all latents in a batch as NumPy arrays.

        `grid(b, t)` matches latents (b, t, d) of sequences and `grid(b, i, j)` latents (b, i, j, d)
        of images, whose patch rows are times and patch columns lanes.

        Args:
          num_sequences: b, the number of windows or images.
          num_times: t, the number of latents in a sequence or of patch rows in an image.
          num_lanes: number of patch columns in an image; omit it for sequences.
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
            check_number("a size of Position.grid", size, least=1)
        if group is not None and np.shape(group) != (num_sequences,):
            problem = f"group does not fit {num_sequences} sequences (got {np.shape(group)})"
            raise UserError(f"{problem}: pass one entry per sequence")
        sequence, time, *lane = np.indices(shape, np.int32)
        if group is not None:
            group = np.reshape(group, (-1, *(1,) * (len(shape) - 1))).astype(np.int32)
            group = group + 0 * sequence
        lanes = lane[0] if lane else np.zeros_like(sequence)
        return cls(sequence, time, lanes, sequence if group is None else group)


class SoundPosition(NamedTuple):
    """A `Position` with the sample range of each latent, for rules that compare sound.

    Sample indices count through all recordings joined end to end, modulo 2^32.
    """

    sequence: ArrayLike
    time: ArrayLike
    lane: ArrayLike
    group: ArrayLike
    sample: ArrayLike
    """First sample of the latent's frame, or of all frames if the latent is a segment."""
    end: ArrayLike
    """First sample after the latent."""
    window: ArrayLike
    """First sample of the latent's window."""


AnyPosition: TypeAlias = Position | SoundPosition


def is_positive(anchor: AnyPosition, candidate: AnyPosition, offset: Any) -> Any:
    """Return whether the candidate is the positive: the latent that the anchor predicts."""
    return (
        (anchor.sequence == candidate.sequence)
        & (anchor.lane == candidate.lane)
        & (anchor.time + offset == candidate.time)
    )


def is_aligned(anchor: AnyPosition, candidate: AnyPosition, offset: Any) -> Any:
    """Return whether the candidate has the lane and time of the positive, in any sequence."""
    return (anchor.lane == candidate.lane) & (anchor.time + offset == candidate.time)


#: rule(anchor, candidate, offset) -> bool array, True if the candidate may be a negative.
NegativeRule: TypeAlias = Callable[[Any, Any, Any], Any]


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule that admits negatives, `rule(anchor, candidate, offset) -> bool`.

    No rule admits the positive. Rules are combined with `&`. `aligned` and `shard_size` must be
    implied by `allows`: `cpc_loss` uses them to skip pairs that the rule excludes, which does not
    change the loss.

    >>> late = Rule("late", lambda anchor, candidate, offset: candidate.time > 5)
    >>> (late & late).name
    'late & late'
    """

    name: str
    allows: NegativeRule
    independent: bool | None = None
    """True if the negatives are independent of the anchor and of each other, given independently
    drawn windows; False if they depend on the anchor's content; None if that depends on the rules
    it is combined with."""
    aligned: bool = False
    """Whether every negative has the time and lane of the positive."""
    shard_size: int | None = None
    """If set, negatives have the anchor's value of sequence // shard_size."""

    def __post_init__(self) -> None:
        """Validate `allows` and copy its docstring, so that `help` describes this rule."""
        check_function("allows", self.allows, 3, "pass a function (anchor, candidate, offset)")
        object.__setattr__(self, "__doc__", self.allows.__doc__ or type(self).__doc__)

    @property
    def is_bound(self) -> bool:
        """Whether log N - L is a lower bound on mutual information under this rule.

        It is one for all admitted negatives or a subset of them. Samplers that repeat or add
        negatives (`cpc.negatives.uniform_draws`, `with_zero`) make it an estimate. If all windows
        of a batch share a group, it bounds the information conditional on the group.
        """
        return self.independent is True

    def __call__(self, anchor: AnyPosition, candidate: AnyPosition, offset: Any) -> Any:
        """Return whether the candidate may be a negative of the anchor."""
        return self.allows(anchor, candidate, offset) & ~is_positive(anchor, candidate, offset)

    def __and__(self, other: "Rule") -> "Rule":
        """Return the rule that admits the negatives that both rules admit.

        A subset of independent negatives stays independent if no rule depends on the content.
        """
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


#: sampler(rng, positive (m,), negatives (m, n), mask (m, n)) -> (negatives, mask), both (m, n') for
#: some n': a selection from the scores of the admitted negatives. Apart from the randomness, row i
#: depends only on row i. Gradients flow into the scores but not through the selection.
NegativeSampler: TypeAlias = Callable[[Any, Any, Any, Any], tuple[Any, Any]]


class CPCOutputs(NamedTuple):
    """Outputs of a CPC model for a batch."""

    z: Array
    """Latents (b, t, d)."""
    c: Array
    """Contexts (b, t, h); c[:, t] depends on the latents up to and including time t."""
    predictions: Array
    """W_k c (b, t, k, d): entry i predicts the latent offsets[i] steps ahead (audio: i + 1)."""


def check_type(name: str, value: Any, kinds: Any, fix: str) -> None:
    """Raise UserError unless an argument is an instance of the given type or types."""
    if not isinstance(value, kinds):
        got = repr(value) if isinstance(value, str | int | float) else type(value).__name__
        raise UserError(f"{name} has the wrong type (got {got}): {fix}")


def check_array(name: str, value: Any, kind: Any = np.number) -> None:
    """Raise UserError unless an argument is an array of real numbers, or of the given kind."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        fix = "pass a JAX or NumPy array"
        raise UserError(f"{name} is not an array (got {type(value).__name__}): {fix}")
    if not jnp.issubdtype(dtype, kind) or jnp.issubdtype(dtype, np.complexfloating):
        numbers = "integers" if kind is np.integer else "real numbers"
        raise UserError(f"{name} does not hold {numbers} (got {dtype}): pass an array of {numbers}")


_BOUNDS = {
    "above": ("above", operator.gt),
    "least": ("at least", operator.ge),
    "most": ("at most", operator.le),
    "below": ("below", operator.lt),
}


def check_number(name: str, value: Any, **bounds: Any) -> None:
    """Raise UserError unless an argument is one number and, if it is known, within the bounds.

    >>> check_number("rate", 0.5, above=0, most=1)  # also: least, below
    """
    if not isinstance(value, int | float):
        check_array(name, value)
    if jnp.ndim(value):
        raise UserError(f"{name} is not one number (got shape {jnp.shape(value)}): pass a scalar")
    # Under jit, comparing even a known JAX array gives a tracer; a NumPy array does not.
    known = None if isinstance(value, Tracer) else np.asarray(value)
    if known is not None and not all(_BOUNDS[k][1](known, limit) for k, limit in bounds.items()):
        limits = " and ".join(f"{_BOUNDS[k][0]} {limit}" for k, limit in bounds.items())
        raise UserError(f"{name} is out of range (got {value}): make it {limits}")


def check_shape(name: str, value: Any, *axes: int | str) -> None:
    """Raise UserError unless an argument is an array with these axes; letters fit any size.

    >>> check_shape("scores", np.zeros((2, 3)), 2, "n")
    """
    check_array(name, value)
    pairs = zip(axes, value.shape, strict=False)
    if len(axes) != value.ndim or any(a != size for a, size in pairs if not isinstance(a, str)):
        wanted = str(axes).replace("'", "")
        raise UserError(f"{name} does not fit (got shape {value.shape}): pass shape {wanted}")


def check_function(name: str, value: Any, num_arguments: int, fix: str) -> None:
    """Raise UserError unless an argument can be called with `num_arguments` arguments."""
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
    """A phone token in a recording, from one line of a ZeroSpeech item file."""

    file: str
    """Name of the recording, without extension."""
    onset: float
    """Start of the token in seconds; tokens often include the neighbouring phones."""
    offset: float
    """End of the token in seconds."""
    phone: str
    before: str
    """The previous phone; together with `after` it is the context."""
    after: str
    """The next phone."""
    speaker: str


class UserError(Exception):
    """An error in a config, a path or a file that the user can fix.

    The message is one sentence with the problem and the fix. Commands print it without a traceback
    and exit with status 2.
    """
