"""Shared types for positions, negative rules, model outputs and errors.

Axis letters have the same meaning in all einsum strings, annotations and comments:

    b batch          s raw samples    t latent time        k offset, 1-based as in the paper
    i j patch row and column          y x pixels           d latent width    h context width
    m anchors        n candidates

Symbols follow the paper: input x, latents z, contexts c, and the predictor W_k of offset k.
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

#: Arrays of a batch by name. "x" is the input and "sequence" the index in the global batch. Data
#: sources add labels, such as "speaker" for sound (the group of `Position`) or "label" for images.
#: "num_samples" is the length of each row before padding, if rows differ in length.
Batch: TypeAlias = dict[str, Any]


class Position(NamedTuple):
    """Positions of latents in a batch, as int32 arrays with one entry per latent.

    Positions are the only input of negative rules, `rule(anchor, candidate, offset) -> bool`. Rules
    broadcast the two positions against each other.
    """

    sequence: ArrayLike
    """Index of the window or image in the global batch."""
    time: ArrayLike
    """Latent time, or patch row."""
    lane: ArrayLike
    """Patch column, or 0 for audio."""
    group: ArrayLike
    """Speaker, or any other class that sequences may share."""

    @classmethod
    def grid(
        cls, num_sequences: int, num_times: int, num_lanes: int | None = None, *, group: Any = None
    ) -> "Position":
        """Return the positions of all latents in a batch as NumPy arrays.

        Sequences with latents (b, t, d) use `grid(b, t)`. Images with latents (b, i, j, d) use
        `grid(b, i, j)`. Their patch rows are times, and their patch columns are lanes.

        Args:
          num_sequences: b, the number of windows or images.
          num_times: t, the number of latents in a sequence or of patch rows in an image.
          num_lanes: number of patch columns in an image, or None for sequences.
          group: each sequence's speaker or class, (b,). By default every sequence is its own group.

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
    """A `Position` with each latent's sample range, for rules that exclude overlapping sound.

    Samples are indexed in the concatenation of all recordings, modulo 2^32.
    """

    sequence: ArrayLike
    time: ArrayLike
    lane: ArrayLike
    group: ArrayLike
    sample: ArrayLike
    """First sample of the latent's frame, or of its first frame if the latent is a segment."""
    end: ArrayLike
    """First sample after the last frame of the latent."""
    window: ArrayLike
    """First sample of the latent's window."""


AnyPosition: TypeAlias = Position | SoundPosition


def is_positive(anchor: AnyPosition, candidate: AnyPosition, offset: Any) -> Any:
    """Return whether the candidate is the positive, the latent that the anchor predicts."""
    return (
        (anchor.sequence == candidate.sequence)
        & (anchor.lane == candidate.lane)
        & (anchor.time + offset == candidate.time)
    )


def is_aligned(anchor: AnyPosition, candidate: AnyPosition, offset: Any) -> Any:
    """Return whether the candidate has the lane and time of the positive, in any sequence."""
    return (anchor.lane == candidate.lane) & (anchor.time + offset == candidate.time)


#: rule(anchor, candidate, offset) -> bool array that is True if the candidate may be a negative.
NegativeRule: TypeAlias = Callable[[Any, Any, Any], Any]


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule that selects candidates as negatives, `rule(anchor, candidate, offset) -> bool`.

    No rule allows the positive. Rules are combined with `&`. `aligned` and `shard_size` must agree
    with `allows`, because `cpc_loss` uses them to skip pairs that the rule excludes anyway.

    >>> late = Rule("late", lambda anchor, candidate, offset: candidate.time > 5)
    >>> (late & late).name
    'late & late'
    """

    name: str
    allows: NegativeRule
    independent: bool | None = None
    """True if negatives are independent of the anchor and of each other for independently drawn
    windows, False if they depend on the content of the anchor, or None if this is decided by the
    rules with which the rule is combined."""
    aligned: bool = False
    """Whether every negative has the time and lane of the positive."""
    shard_size: int | None = None
    """If set, the anchor and its negatives have the same value of sequence // shard_size."""

    def __post_init__(self) -> None:
        """Validate `allows` and copy its docstring, so that `help` describes the rule."""
        check_function("allows", self.allows, 3, "pass a function (anchor, candidate, offset)")
        object.__setattr__(self, "__doc__", self.allows.__doc__ or type(self).__doc__)

    @property
    def is_bound(self) -> bool:
        """Whether log N - L is a lower bound on mutual information under this rule.

        This holds for all allowed negatives or a subset of them, but not for samplers that repeat
        or add negatives (`cpc.negatives.uniform_draws`, `with_zero`). If all windows of a batch
        have the same group, log N - L bounds the information conditional on the group.
        """
        return self.independent is True

    def __call__(self, anchor: AnyPosition, candidate: AnyPosition, offset: Any) -> Any:
        """Return whether the candidate may be a negative of the anchor."""
        return self.allows(anchor, candidate, offset) & ~is_positive(anchor, candidate, offset)

    def __and__(self, other: "Rule") -> "Rule":
        """Return a rule that allows the candidates that both rules allow.

        Negatives are independent if one rule is independent and neither depends on the content.
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
#: some n'. The result is a selection from the scores of the allowed negatives. Apart from the
#: randomness, row i depends only on row i. Gradients flow into scores, not through the selection.
NegativeSampler: TypeAlias = Callable[[Any, Any, Any, Any], tuple[Any, Any]]


class CPCOutputs(NamedTuple):
    """A CPC model's outputs for one batch."""

    z: Array
    """Latents (b, t, d)."""
    c: Array
    """Contexts (b, t, h). c[:, t] depends on the latents up to and including time t."""
    predictions: Array
    """W_k c (b, t, k, d). Entry i predicts the latent offsets[i] steps ahead (i + 1 for audio)."""


def check_type(name: str, value: Any, kinds: Any, fix: str) -> None:
    """Raise UserError unless an argument is an instance of the given type or types."""
    if not isinstance(value, kinds):
        got = repr(value) if isinstance(value, str | int | float) else type(value).__name__
        raise UserError(f"{name} has the wrong type (got {got}): {fix}")


def check_array(name: str, value: Any, kind: Any = np.number) -> None:
    """Raise UserError unless an argument is an array of real numbers of the given kind."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        fix = "pass a JAX or NumPy array"
        raise UserError(f"{name} is not an array (got {type(value).__name__}): {fix}")
    if not jnp.issubdtype(dtype, kind) or jnp.issubdtype(dtype, np.complexfloating):
        numbers = "integers" if kind is np.integer else "real numbers"
        raise UserError(f"{name} must hold {numbers} (got {dtype}): pass an array of {numbers}")


_BOUNDS = {
    "above": ("above", operator.gt),
    "least": ("at least", operator.ge),
    "most": ("at most", operator.le),
    "below": ("below", operator.lt),
}


def check_number(name: str, value: Any, **bounds: Any) -> None:
    """Raise UserError unless an argument is one number and, if not traced, within the bounds.

    >>> check_number("rate", 0.5, above=0, most=1)  # also: least, below
    """
    if not isinstance(value, int | float):
        check_array(name, value)
    if jnp.ndim(value):
        raise UserError(f"{name} is not a scalar (got shape {jnp.shape(value)}): pass one number")
    # Under jit, comparing even a known JAX array gives a tracer, so compare NumPy arrays.
    known = None if isinstance(value, Tracer) else np.asarray(value)
    if known is not None and not all(_BOUNDS[k][1](known, limit) for k, limit in bounds.items()):
        limits = " and ".join(f"{_BOUNDS[k][0]} {limit}" for k, limit in bounds.items())
        raise UserError(f"{name} is out of range (got {value}): pass a number {limits}")


def check_shape(name: str, value: Any, *axes: int | str) -> None:
    """Raise UserError unless an argument is an array of the given shape. Letters match any size.

    >>> check_shape("scores", np.zeros((2, 3)), 2, "n")
    """
    check_array(name, value)
    pairs = zip(axes, value.shape, strict=False)
    if len(axes) != value.ndim or any(a != size for a, size in pairs if not isinstance(a, str)):
        wanted = str(axes).replace("'", "")
        raise UserError(f"{name} has the wrong shape (got shape {value.shape}): pass {wanted}")


def check_function(name: str, value: Any, num_arguments: int, fix: str) -> None:
    """Raise UserError unless an argument can be called with `num_arguments` arguments."""
    check_type(name, value, Callable, fix)
    try:
        inspect.signature(value).bind(*range(num_arguments))
    except TypeError as error:
        called = getattr(value, "__name__", type(value).__name__)
        problem = f"{name} cannot be called with {num_arguments} arguments"
        raise UserError(f"{problem} (got {called}, {error}): {fix}") from None
    except ValueError:  # builtins may have no signature
        pass


class Item(NamedTuple):
    """A phone token in a recording, from one line of a ZeroSpeech item file."""

    file: str
    """Name of the recording, without extension."""
    onset: float
    """Start of the token in seconds. Tokens often include the neighbouring phones."""
    offset: float
    """End of the token in seconds."""
    phone: str
    before: str
    """The previous phone. Together, `before` and `after` are the context of the phone."""
    after: str
    """The next phone."""
    speaker: str


class UserError(Exception):
    """An error in a config, a path or a file that the user can fix.

    The message is one sentence that states the problem and the fix. Commands print the message
    without a traceback and exit with status 2.
    """
