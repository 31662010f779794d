"""Properties of the losses, and the losses that can be selected in a config."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from cpc.losses.noise_contrastive import (
    debiased,
    decoupled,
    hard_weighted,
    info_nce,
    nce,
    negative_sampling,
    ranking_nce,
)
from cpc.losses.sampled import full_logistic, full_softmax, sampled_logistic, sampled_softmax
from cpc.losses.views import nt_xent, sigmoid, sup_con, triplet

#: loss(positive (m,), negatives (m, n), where (m, n)) -> (m,), in nats, separately for each row.
AnchorLoss: TypeAlias = Callable[[Array, Array, Array], Array]


class Description(NamedTuple):
    """Properties of a loss L of scores s.

    c is the context, x a candidate, and q the density of the negatives.
    """

    name: str
    optimum: str | None = None
    """The score that minimises the loss."""
    bounds: str | None = None
    """The quantity for which log N - L is a lower bound on average, if the negatives are
    independent draws from the marginal p(x), or None if log N - L is not a bound."""
    posterior: str | None = None
    """The probability that a score represents."""
    has_log_n: bool = False
    """Whether L is log N at equal scores and tends to 0 if the positive has by far the highest
    score, so that log N - L is between 0 at chance and the ceiling log N."""
    needs_cosines: bool = False
    """Whether the loss has a floor or a margin that is meaningful only for cosines."""
    has_floor: bool = False
    """Whether the loss has an argument `least`, the lowest possible score, and allows no bias."""
    uses_group_positives: bool = False
    """Whether candidates in the anchor's group are additional positives (`where_positive`)."""
    can_tile: bool = False
    """Whether `cpc_loss` has a hand-written derivative of the loss that can split long rows."""

    def is_bound(self, independent_negatives: bool) -> bool:
        """Return whether log N - L is a lower bound on mutual information.

        Independent negatives depend neither on the content of the anchor nor on each other. Mining,
        drawing from the anchor's sequence, or removing accidental hits makes them dependent.
        """
        return independent_negatives and self.bounds is not None


class LossSpec(NamedTuple):
    """A loss that can be selected in a config."""

    function: Callable[..., Any]
    """The loss, with the arguments that are fixed for its name."""
    options: tuple[str, ...] = ()
    """Names of the other arguments, which are also the config keys that set them."""

    @property
    def description(self) -> Description:
        """Properties of the loss."""
        return describe(self.function)

    def bind(self, options: Mapping[str, Any]) -> AnchorLoss:
        """Return the loss with the given options bound. Options that it does not take are ignored.

        >>> LOSSES["debiased"].bind({"prior": 0.2, "margin": 1.0}).keywords
        {'prior': 0.2}
        """
        return functools.partial(self.function, **{name: options[name] for name in self.options})


_INFORMATION = "I(x; c)"
_CORRECTED = "log p(x|c) + h(c), given log q of every candidate"
_LOG_ODDS = "log p(x|c) / (1 - p(x|c))"
_WHICH = "softmax of the scores: which candidate is the positive"
_DATA = "sigmoid(s): data, not one of K negatives"
_EACH = "sigmoid(s): each class by itself"

# Positional arguments are name, optimum, bounds and posterior. NT-Xent does not give a bound,
# because its negatives come in dependent pairs of views.
_DESCRIPTIONS: tuple[tuple[Callable[..., Any], Description], ...] = (
    (info_nce, Description(
        "InfoNCE", "log p(x|c) / q(x) + h(c)", _INFORMATION, _WHICH,
        has_log_n=True, can_tile=True)),
    (ranking_nce, Description("ranking NCE", _CORRECTED, _INFORMATION, _WHICH, has_log_n=True)),
    (nce, Description(
        "binary NCE", "log p(x|c) + log Z, or log p(x|c) / q(x) if log q is given as 0",
        None, "sigmoid(s - log K q): data, not one of K noise samples")),
    (negative_sampling, Description(
        "negative sampling", "log p(x|c) / q(x) - log K", None, _DATA)),
    (sampled_softmax, Description(
        "sampled softmax", _CORRECTED, _INFORMATION, _WHICH, has_log_n=True)),
    (sampled_logistic, Description("sampled logistic", _LOG_ODDS, None, _EACH)),
    (full_softmax, Description(
        "full softmax", "log p(x|c) + h(c)", None, "softmax of the scores: which class")),
    (full_logistic, Description("full logistic", _LOG_ODDS, None, _EACH)),
    (nt_xent, Description(
        "NT-Xent", "log p(x|c) / p(x) + h(c), as far as cosine / tau reaches", None, _WHICH,
        has_log_n=True)),
    (sup_con, Description("SupCon", needs_cosines=True, uses_group_positives=True)),
    (decoupled, Description("decoupled", "log p(x|c) / q(x) + h(c) as K grows", None, _WHICH)),
    (debiased, Description(
        "debiased", "log p+(x) / p-(x) + h(c)", None, _WHICH,
        has_log_n=True, needs_cosines=True, has_floor=True)),
    (hard_weighted, Description(
        "hard-weighted", "log p+(x) / tilted noise + h(c)", None, _WHICH,
        has_log_n=True, needs_cosines=True, has_floor=True)),
    (sigmoid, Description("sigmoid", "logit log p(x|c) / p(x) - log K", None, _DATA)),
    (triplet, Description("triplet", needs_cosines=True)),
)  # fmt: skip

_partial = functools.partial
#: Losses by config name. NCE uses the distribution of the candidates as its reference measure, so
#: log q is 0.
LOSSES: dict[str, LossSpec] = {
    "info_nce": LossSpec(info_nce),
    "nce": LossSpec(_partial(nce, log_noise_positive=0.0, log_noise_negatives=0.0)),
    "sigmoid": LossSpec(sigmoid),
    "decoupled": LossSpec(decoupled),
    "debiased": LossSpec(debiased, ("prior",)),
    "hard_weighted": LossSpec(hard_weighted, ("prior", "concentration")),
    "triplet_hard": LossSpec(_partial(triplet, mining="hard"), ("margin",)),
    "triplet_semi_hard": LossSpec(_partial(triplet, mining="semi_hard"), ("margin",)),
    "triplet_all": LossSpec(_partial(triplet, mining="all"), ("margin",)),
    "sup_con": LossSpec(sup_con),
}


def describe(loss: Callable[..., Any]) -> Description:
    """Return the properties of a loss or its partial. Unknown functions have only a name.

    >>> describe(functools.partial(info_nce, temperature=0.1)).is_bound(independent_negatives=True)
    True
    """
    bound = functools.partial(loss)  # flattens nested partials
    for function, description in _DESCRIPTIONS:
        if function is bound.func:
            if _corrects_consistently(bound.keywords) or not description.has_log_n:
                return description
            return description._replace(optimum=None, bounds=None, has_log_n=False, posterior=None)
    name = getattr(bound.func, "__name__", type(bound.func).__name__)
    return Description(name)


def describe_aligned(description: Description) -> Description:
    """Return the properties of a loss whose predictions are aligned to frames (`acpc_loss`)."""
    name = f"aligned {description.name}"
    return description._replace(name=name, optimum=None, bounds=None, has_log_n=False)


def _corrects_consistently(keywords):
    """Return whether the same log q corrects all candidates, so that it is part of the critic.

    Two arrays are assumed to be the same log q, evaluated at the positive and at the negatives.
    """
    corrections = [
        keywords.get(f"log_noise_{which}", keywords.get(f"log_q_{which}", 0.0))
        for which in ("positive", "negatives")
    ]
    numbers = [not isinstance(each, Tracer) and jnp.ndim(each) == 0 for each in corrections]
    if not all(numbers):
        return not any(numbers)
    positive, negatives = map(np.float32, corrections)  # as the loss reads them
    return bool(positive == negatives)
