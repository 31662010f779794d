"""Studies: theory measured, each with a page of its own."""
