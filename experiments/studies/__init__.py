"""Studies: what is often said, measured on real data; a command and a page each."""
