# %% [markdown]
# # Read a reproduction and judge its claims
#
# `cpc reproduce` reruns the tables and figures of the paper. This notebook reads the folder that it
# wrote. If it does not exist, the notebook runs the smallest version first: Figure 3 after twenty
# steps on synthetic sound, which only checks that everything runs.

# %%
import contextlib
import pathlib
import sys
import tempfile

import numpy as np
import pandas as pd
from IPython.display import HTML, display

from cpc.results import Difference, Score, score_frame

sys.path.insert(0, "..")  # contains configs and experiments
from experiments.reproduce.__main__ import reproduce
from experiments.reproduce.claims import TABLES
from experiments.reproduce.page import write_reproduction
from experiments.reproduce.statistics import (
    judge,
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
def assume_intervals(table, half):
    """Return the paper's accuracies with intervals of plus and minus `half`."""
    rows = pd.DataFrame([row for row in table.rows if row.paper is not None]).set_index("label")
    return rows.assign(value=rows.paper, low=rows.paper - half, high=rows.paper + half, seeds=1)


def make_scores(row):
    """Return a row's accuracy in the form of a probe's records."""
    names = "phones", "the paper's", "frame", "c", "linear", "accuracy"
    return score_frame([Score(*names, row.value / 100, row.low / 100, row.high / 100)])


steps, negatives = (table for table in TABLES if table.number == "2")
for table in (steps, negatives):
    found = {str(row.Index): make_scores(row) for row in assume_intervals(table, 0.5).itertuples()}
    pairs = judge(table, found)
    pairs["verdict"] = [
        judge_pair(Difference(one.value, one.low, one.high), one.relation)
        for one in pairs.itertuples()
    ]
    display(pairs[["lower", "relation", "higher", "verdict"]])

# %% [markdown]
# Kendall's tau is 1 if two orders agree and -1 if one is the reverse of the other. Its interval
# redraws each row within its own interval; p is the fraction of all orders with at least this tau.

# %%
paper = assume_intervals(steps, 0.5).paper.to_numpy()
print(float(kendall_tau(np.array([1.0, 2, 3, 5, 4]), paper)))
for half in (0.2, 5.0, 30.0):
    tau = order_agreement(assume_intervals(steps, half))
    result = f"{tau.value:.2f} ({tau.low:.2f} to {tau.high:.2f}), p {tau.p_value:.3f}"
    print(f"half-width {half:>4}: {result}")
