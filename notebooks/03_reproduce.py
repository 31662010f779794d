# %% [markdown]
# # The paper beside ours
#
# `python -m experiments.reproduce` makes the paper's tables and figures again. This notebook reads
# a folder that it left. Where there is none, it makes the smallest one: Figure 3 after twenty
# steps on sound that is made up, which says that everything runs, and nothing else.

# %%
import contextlib
import pathlib
import sys
import tempfile

import numpy as np
import pandas as pd
from IPython.display import HTML, display

from cpc.results import Score, score_frame

sys.path.insert(0, "..")  # where configs and experiments are
from experiments.reproduce.__main__ import reproduce
from experiments.reproduce.claims import TABLES
from experiments.reproduce.page import write_reproduction
from experiments.reproduce.statistics import (
    judge,
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
# ## What came out
# The page can be written again from the folder alone, finished or not.

# %%
page = write_reproduction(folder)
found = read_reproduction(folder)
print(found.plan["size"], found.plan["hardware"], sep="\n")
print(*verdict(found, read_results(found)), sep="\n")

# %%
HTML(page.read_text().partition("<main>")[2].partition("</main>")[0])

# %% [markdown]
# ## How a claim is judged
# The paper's own accuracies, each with an interval of plus and minus half a point: which of its
# claims could be told at that width?


# %%
def at_width(table, half):
    """The paper's own accuracies, with an interval."""
    rows = pd.DataFrame([row for row in table.rows if row.paper is not None]).set_index("label")
    return rows.assign(value=rows.paper, low=rows.paper - half, high=rows.paper + half, seeds=1)


def scores_of(row):
    """A row's accuracy as a probe would record it."""
    names = "phones", "the paper's", "frame", "c", "linear", "accuracy"
    return score_frame([Score(*names, row.value / 100, row.low / 100, row.high / 100)])


steps, negatives = (table for table in TABLES if table.number == "2")
for table in (steps, negatives):
    found = {str(row.Index): scores_of(row) for row in at_width(table, 0.5).itertuples()}
    pairs = judge(table, found)
    display(pairs[["lower", "relation", "higher", "verdict"]])

# %% [markdown]
# Kendall's tau says how far two orders agree: 1 the same, -1 reversed. Its interval here draws each
# row anew within its own; p counts all orders that agree as well.

# %%
paper = at_width(steps, 0.5).paper.to_numpy()
print(float(kendall_tau(np.array([1.0, 2, 3, 5, 4]), paper)))
for half in (0.2, 5.0, 30.0):
    tau = order_agreement(at_width(steps, half))
    words = f"{tau.value:.2f} ({tau.low:.2f} to {tau.high:.2f}), p {tau.p_value:.3f}"
    print(f"half-width {half:>4}: {words}")
