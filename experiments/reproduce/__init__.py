"""The paper's tables and figures made again: `cpc reproduce`."""
