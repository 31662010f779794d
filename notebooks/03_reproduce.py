# %% [markdown]
# # Read a reproduction and judge its claims
#
# `cpc reproduce` reruns the tables and figures of the paper. This notebook reads the folder that it
# wrote. If it does not exist, the notebook runs the smallest version first: Figure 3 after twenty
# steps on synthetic sound, which only checks that everything runs.

# %%
import contextlib
import math
import pathlib
import sys
import tempfile

import numpy as np
import pandas as pd
from IPython.display import HTML, display

from cpc.results import Difference

sys.path.insert(0, "..")  # contains configs and experiments
from experiments.reproduce.__main__ import reproduce
from experiments.reproduce.claims import TABLES
from experiments.reproduce.page import write_reproduction
from experiments.reproduce.statistics import (
    judge_pair,
    kendall_tau,
    order_agreement,
    read_reproduction,
    read_results,
    verdict,
)

# %%
folder = pathlib.Path("../runs/reproduced").resolve()
if not (folder / "sweep.json").exists():
    folder = pathlib.Path(tempfile.mkdtemp())
    with contextlib.chdir(".."):  # python -m experiments.reproduce --figure 3 --scale smoke
        reproduce(["figure 3"], scale="smoke", device="cpu", workdir=str(folder))

# %% [markdown]
# ## Results
# The page can be rewritten from the folder alone, also before all runs have finished.

# %%
page = write_reproduction(folder)
found = read_reproduction(folder)
print(found.plan["size"], found.plan["hardware"], sep="\n")
print(*verdict(found, read_results(found)), sep="\n")

# %%
HTML(page.read_text().partition("<main>")[2].partition("</main>")[0])

# %% [markdown]
# ## How a claim is judged
# If each of the paper's accuracies had an interval of plus and minus half a point, which of its
# claims would be decided? (A real page judges no single seed; here the intervals are assumed.)

# %%
steps, negatives = (table for table in TABLES if table.number == "2")
half = math.hypot(0.5, 0.5)  # of the difference of two rows
for table in (steps, negatives):
    pairs = pd.DataFrame(
        [pair for claim in table.claims for pair in claim.pairs],
        columns=["lower", "relation", "higher"],
    )
    points = [table.effect(pair.lower, pair.higher) for pair in pairs.itertuples()]
    pairs["verdict"] = [
        judge_pair(Difference(x, x - half, x + half), relation)
        for x, relation in zip(points, pairs.relation, strict=True)
    ]
    display(pairs)

# %% [markdown]
# Kendall's tau is 1 if two orders agree and -1 if one is the reverse of the other. Its interval
# redraws each row within its own interval; p is the fraction of all orders with at least this tau.

# %%
paper = np.array([row.paper for row in steps.rows])
print(float(kendall_tau(np.array([1.0, 2, 3, 5, 4]), paper)))
for half in (0.2, 5.0, 30.0):
    ends = {"low": paper - half, "high": paper + half}
    tau = order_agreement(pd.DataFrame({"paper": paper, "value": paper, **ends}))
    result = f"{tau.value:.2f} ({tau.low:.2f} to {tau.high:.2f}), p {tau.p_value:.3f}"
    print(f"half-width {half:>4}: {result}")
