"""How many negatives, how hard, at what temperature: closed forms beside the losses themselves."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from cpc.losses import info_nce, triplet
from cpc.negatives import (
    alias_table,
    draw,
    effective_margin,
    entropy,
    hit_rate,
    min_negatives,
    negative_weights,
    solve_temperature,
)
from experiments.studies.nce.findings import Finding, check, finding


def losses_at(positives: np.ndarray, beta: float, tau: float, num: int) -> tuple:
    """Return InfoNCE and the triplet loss of margin tau log K, in its unit, on equal negatives."""
    scores = jnp.asarray(positives, jnp.float32)
    negatives = jnp.full((len(scores), num), beta, jnp.float32)
    hinge = triplet(scores, negatives, margin=tau * np.log(num)) / tau
    soft = info_nce(scores, negatives, temperature=tau)
    return tuple(np.asarray(loss, np.float64) for loss in (soft, hinge))


def threshold(beta: float, tau: float, counts: Sequence[int], num_points: int) -> Finding:
    """Check that InfoNCE is a triplet loss with its corner rounded off, at most log 2 above.

    0 <= L - max(0, m - a) / tau <= log 2,  m = beta + tau log K
    """
    measured = []
    for num in counts:
        m = effective_margin(beta, tau, num, highest=np.inf)
        positives = np.linspace(m - 6 * tau, m + 6 * tau, num_points)
        soft, hinge = losses_at(positives, beta, tau, num)
        gap = soft - hinge
        measured.append((positives, soft, hinge, positives[gap.argmax()], gap.max(), gap.min()))
    predicted = [effective_margin(beta, tau, num, highest=np.inf) for num in counts]
    found = [one[3] for one in measured]
    grid = 12 * tau / (num_points - 1)
    checks = [
        check(f"threshold, K = {num}", at, m, grid, "the grid's step")
        for num, at, m in zip(counts, found, predicted, strict=True)
    ]
    slope = np.polyfit(np.log(counts), found, 1)[0]
    checks += [
        check("slope over log K", slope, tau, grid, "the grid's step"),
        check("gap, greatest", max(one[4] for one in measured), np.log(2), 1e-4, "float32 of L"),
        check("gap, least", min(one[5] for one in measured), 0, 1e-4, "float32 of L", ">="),
    ]
    positives, soft, hinge, *_ = measured[-1]
    return finding(
        "InfoNCE against the triplet loss",
        "the two differ by at most log 2 = 0.6931, at the threshold beta + tau log K, whose slope "
        f"over log K is tau = {tau:g}",
        f"at most {checks[-2]['measured']:.4f}, at thresholds with a slope of {slope:.4f}",
        checks,
        {"a": positives, "soft": soft, "hinge": hinge, "k": counts, "found": found,
         "predicted": predicted, "beta": beta, "tau": tau},
    )  # fmt: skip


def negatives_needed(
    densities: Sequence[float], rates: Sequence[float], num_anchors: int, seed: int
) -> Finding:
    """Check that so many negatives hold a hard one often enough, and one fewer do not.

    k = ceil( log(1 - h) / log(1 - rho) )
    """
    checks, curves = [], {"rate": rates, "needed": {}, "share": {}}
    for i, density in enumerate(densities):
        needed = [min_negatives(density, rate) for rate in rates]
        # Class 1 is hard. Where the first one comes says how large k must be.
        rng = jax.random.fold_in(jax.random.key(seed), i)
        table = alias_table(np.array([1 - density, density]))
        is_hard = np.asarray(draw(rng, table, (num_anchors, max(needed))))
        first = np.where(is_hard.any(1), is_hard.argmax(1) + 1, max(needed) + 1)
        shares = [float((first <= k).mean()) for k in needed]
        curves["needed"][density], curves["share"][density] = needed, shares
        for rate, k, share in zip(rates, needed, shares, strict=True):
            expected = float(hit_rate(density, k))
            error = np.sqrt(expected * (1 - expected) / num_anchors)
            few = f"4 standard errors of {num_anchors} anchors"
            checks.append(
                check(f"hit rate, rho {density:g}, k = {k}", share, expected, 4 * error, few)
            )
            fewer = float(hit_rate(density, k - 1))
            checks.append(check(f"that of {k - 1}", fewer, rate, 1e-9, "exact", "<="))
    off = max(abs(r["measured"] - r["expected"]) for r in checks[::2])
    return finding(
        "Negatives needed for a hard one",
        "log(1 - h) / log(1 - rho) negatives hold a hard one in a fraction h of anchors; one "
        "fewer do not",
        f"fractions of {num_anchors:,} anchors within {off:.3f} of it at every density and rate",
        checks,
        curves,
    )


def temperature(scores: np.ndarray, taus: np.ndarray, fractions: Sequence[float]) -> Finding:
    """Check that entropy rises with tau from 0 to log n, with a slope that is a variance.

    dH / dtau = Var_p(s) / tau^3, p the softmax at tau
    """
    row_of = jnp.asarray(scores, jnp.float32)[None]
    at = jax.jit(jax.vmap(jax.value_and_grad(lambda tau: entropy(row_of, tau)[0])))
    heights, slopes = (np.asarray(part, np.float64) for part in at(jnp.asarray(taus, jnp.float32)))
    p = np.exp(scores / taus[:, None] - np.logaddexp.reduce(scores / taus[:, None], 1)[:, None])
    variance = p @ scores**2 - (p @ scores) ** 2
    wanted = np.array(fractions) * np.log(len(scores))
    solved = np.array([float(solve_temperature(row_of, float(h))) for h in wanted])
    reached = [float(entropy(row_of, float(tau))[0]) for tau in solved]
    shares = np.array([np.sort(np.asarray(negative_weights(row_of, float(t))[0])) for t in taus])
    scale = np.abs(slopes).max()
    checks = [
        check("slope, greatest error", np.abs(slopes - variance / taus**3).max() / scale, 0, 1e-4,
            "float32, of the greatest slope"),
        check("entropy at the lowest tau", heights[0], 0, 0.05, "one greatest score, tau not 0"),
        check("entropy at the highest tau", heights[-1], np.log(len(scores)), 0.05, "tau not inf"),
        check("entropy falls by", -np.diff(heights).min(), 0, 1e-5, "float32", "<="),
    ]  # fmt: skip
    checks += [
        check(f"entropy at tau = {tau:.4f}", found, h, 1e-5, "float32")
        for tau, found, h in zip(solved, reached, wanted, strict=True)
    ]
    return finding(
        "Entropy against temperature",
        "H rises from 0 to log n with the slope Var_p(s) / tau^3, so that a temperature can be "
        "solved for any entropy between",
        f"the slope is off by {checks[0]['measured']:.1g} of its greatest, and solved temperatures "
        f"give the wanted entropies within {np.abs(np.array(reached) - wanted).max():.1g} nats",
        checks,
        {"tau": taus, "entropy": heights, "slope": slopes, "variance": variance / taus**3,
         "solved": solved, "wanted": wanted, "hardest": shares[:, -1],
         "harder_half": shares[:, len(scores) // 2 :].sum(1), "n": len(scores)},
    )  # fmt: skip
