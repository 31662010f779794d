"""What each loss learns, and whether log N - L means anything: a table."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from cpc.losses.info_nce import info_nce
from cpc.losses.noise_contrastive import nce, negative_sampling, ranking_nce
from cpc.losses.pairwise import sigmoid, triplet
from cpc.losses.reweighted import debiased, decoupled, hard_weighted
from cpc.losses.sampled import full_logistic, full_softmax, sampled_logistic, sampled_softmax
from cpc.losses.views import nt_xent, sup_con


class Description(NamedTuple):
    """A loss in words. Symbols: s score, c context, x candidate, q the negatives' density."""

    name: str
    optimum: str | None
    """The score that minimises the loss."""
    estimates: str
    """What the score is then worth."""
    bounds: str | None
    """What log N - L bounds from below, on average, when the negatives are independent draws from
    the marginal p(x); None: it bounds nothing."""
    reference: str
    has_log_n: bool = False
    """Whether L is log N at equal scores and 0 when the positive wins by far: log N - L then
    measures information, from chance to its ceiling. Otherwise it says nothing."""
    posterior: str | None = None
    """The probability that a score stands for."""

    def is_bound(self, independent_negatives: bool) -> bool:
        """Whether log N - L is a lower bound on mutual information, with these negatives.

        Independent means of the anchor's content and of each other. Negatives that are mined, taken
        from the own sequence, or cleared of accidental hits are not.
        """
        return independent_negatives and self.bounds is not None


MUTUAL_INFORMATION = "I(x; c)"
RATIO = "log p(x|c) / q(x) + h(c)"
DENSITY = "log p(x|c) + h(c)"
CORRECTED = f"{DENSITY}, given log q of every candidate"
LOG_ODDS = "log p(x|c) / (1 - p(x|c))"
WHICH = "softmax of the scores: which candidate is the positive"
CLASS = "softmax of the scores: which class"
DATA = "sigmoid(s): data, not one of K negatives"
EACH = "sigmoid(s): each class by itself"

TABLE: tuple[tuple[Callable[..., Any], Description], ...] = (
    (
        info_nce,
        Description(
            "InfoNCE",
            RATIO,
            "density ratio up to a factor of c",
            MUTUAL_INFORMATION,
            "van den Oord et al. 2018, eq. 4",
            has_log_n=True,
            posterior=WHICH,
        ),
    ),
    (
        ranking_nce,
        Description(
            "ranking NCE",
            CORRECTED,
            "conditional density up to a factor of c",
            MUTUAL_INFORMATION,
            "Ma & Collins 2018",
            has_log_n=True,
            posterior=WHICH,
        ),
    ),
    (
        nce,
        Description(
            "binary NCE",
            "log p(x|c) + log Z, or log p(x|c) / q(x) if log q is given as 0",
            "conditional density with its normaliser",
            None,
            "Gutmann & Hyvarinen 2012",
            posterior="sigmoid(s - log K q): data, not one of K noise samples",
        ),
    ),
    (
        negative_sampling,
        Description(
            "negative sampling",
            "log p(x|c) / q(x) - log K",
            "density ratio, shifted",
            None,
            "Mikolov et al. 2013, eq. 4",
            posterior=DATA,
        ),
    ),
    (
        sampled_softmax,
        Description(
            "sampled softmax",
            CORRECTED,
            "conditional density up to a factor of c",
            MUTUAL_INFORMATION,
            "Jean et al. 2015, section 3",
            has_log_n=True,
            posterior=WHICH,
        ),
    ),
    (
        sampled_logistic,
        Description(
            "sampled logistic",
            LOG_ODDS,
            "log odds of each class",
            None,
            "TensorFlow, Candidate sampling",
            posterior=EACH,
        ),
    ),
    (
        full_softmax,
        Description(
            "full softmax",
            DENSITY,
            "conditional density; H(x) - L bounds I(x; c)",
            None,
            "maximum likelihood",
            posterior=CLASS,
        ),
    ),
    (
        full_logistic,
        Description(
            "full logistic",
            LOG_ODDS,
            "log odds of each class",
            None,
            "maximum likelihood",
            posterior=EACH,
        ),
    ),
    (
        nt_xent,
        Description(
            "NT-Xent",
            "log p(x|c) / p(x) + h(c), as far as cosine / tau reaches",
            "density ratio up to a factor of c",
            None,  # its negatives come in pairs of views
            "Chen et al. 2020, eq. 1",
            has_log_n=True,
            posterior=WHICH,
        ),
    ),
    (
        sup_con,
        Description("SupCon", None, "classes, grouped", None, "Khosla et al. 2020, eq. 2 and 3"),
    ),
    (
        decoupled,
        Description(
            "decoupled",
            "log p(x|c) / q(x) + h(c) as K grows",
            "density ratio up to a factor of c",
            None,
            "Yeh et al. 2022",
            posterior=WHICH,
        ),
    ),
    (
        debiased,
        Description(
            "debiased",
            "log p+(x) / p-(x) + h(c)",
            "density ratio to the negatives of other classes",
            None,
            "Chuang et al. 2020, section 4",
            has_log_n=True,
            posterior=WHICH,
        ),
    ),
    (
        hard_weighted,
        Description(
            "hard-weighted",
            "log p+(x) / tilted noise + h(c)",
            "density ratio to noise tilted towards the anchor",
            None,
            "Robinson et al. 2021, section 3",
            has_log_n=True,
            posterior=WHICH,
        ),
    ),
    (
        sigmoid,
        Description(
            "sigmoid",
            "logit log p(x|c) / p(x) - log K",
            "density ratio, shifted",
            None,
            "Zhai et al. 2023, section 3.2",
            posterior=DATA,
        ),
    ),
    (
        triplet,
        Description("triplet", None, "order of distances", None, "Schroff et al. 2015, section 3"),
    ),
)


def describe(loss: Callable[..., Any]) -> Description:
    """What a loss learns; a partial is looked into, and an unknown function bounds nothing.

    >>> describe(functools.partial(info_nce, temperature=0.1)).is_bound(independent_negatives=True)
    True
    """
    keywords: dict[str, Any] = {}
    while isinstance(loss, functools.partial):
        keywords = {**loss.keywords, **keywords}
        loss = loss.func
    for function, description in TABLE:
        if function is loss:
            return description if _one_critic(keywords) else _two_critics(description)
    name = getattr(loss, "__name__", type(loss).__name__)
    return Description(name, None, "unknown", None, "none given")


def describe_aligned(description: Description) -> Description:
    """What a loss learns whose predictions are aligned to more frames (`acpc_loss`): no bound."""
    return description._replace(
        name=f"aligned {description.name}",
        optimum=None,
        estimates="density ratio of the frames that the alignment gives to a prediction",
        bounds=None,
        reference="Chorowski et al. 2021",
        has_log_n=False,
    )


def _one_critic(keywords):
    """Whether -log q can be part of the critic: a correction of all candidates, or of none.

    Two arrays are taken to be the same log q, read off at the positive and at the negatives.
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


def _two_critics(description):
    if not description.has_log_n:
        return description
    return description._replace(
        optimum=None,
        estimates="unclear: positive and negatives corrected unlike",
        bounds=None,
        has_log_n=False,
        posterior=None,
    )
