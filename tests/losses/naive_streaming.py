"""Streaming InfoNCE as loops over anchors, in float64."""

from typing import NamedTuple

import numpy as np

from cpc.types import Position


class Twin(NamedTuple):
    loss: np.ndarray
    num_candidates: np.ndarray
    rank: np.ndarray
    wins: np.ndarray
    counted: np.ndarray
    dqueries: np.ndarray
    dkeys: np.ndarray
    highest: float


def streaming(q, k, anchors, candidates, rule, offset, g, temperature=1.0, where=None):
    """Losses and standing of anchors, and gradients of sum_i g_i L_i."""
    q, k = np.asarray(q, np.float64), np.asarray(k, np.float64)
    where = where or (np.ones(len(q), bool), np.ones(len(k), bool))
    loss, num, rank, wins, counted = (np.zeros(len(q)) for _ in range(5))
    dq, dk = np.zeros_like(q), np.zeros_like(k)
    rows = Position(*(np.asarray(p)[:, None] for p in anchors))
    columns = Position(*(np.asarray(p)[None] for p in candidates))
    allowed = np.broadcast_to(np.asarray(rule(rows, columns, offset)), (len(q), len(k)))
    for i in np.flatnonzero(where[0]):
        here = Position(*(np.asarray(p)[i] for p in anchors))
        positive, negatives = None, []
        for j in np.flatnonzero(where[1]):
            there = Position(*(np.asarray(p)[j] for p in candidates))
            if there[:3] == (here.sequence, here.time + offset, here.lane):
                positive = j
            elif allowed[i, j]:
                negatives.append(j)
        if positive is None or not negatives:
            continue
        ids = np.array([positive, *negatives])
        scores = k[ids] @ q[i] / temperature
        total = np.logaddexp.reduce(scores)
        loss[i], num[i], counted[i] = total - scores[0], len(ids), 1
        rank[i] = (scores[1:] >= scores[0]).sum()
        wins[i] = (scores[1:] < scores[0]).sum() + 0.5 * (scores[1:] == scores[0]).sum()
        w = g[i] * (np.exp(scores - total) - (ids == positive)) / temperature
        dq[i] += w @ k[ids]
        dk[ids] += np.outer(w, q[i])
    return Twin(loss, num, rank, wins, counted, dq, dk, np.abs(q @ k.T).max())
