"""How much do two arrays tell of each other: `cpc information`."""
