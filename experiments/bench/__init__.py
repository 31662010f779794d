"""How fast and how big: `cpc bench` prints a table and writes it as json."""
