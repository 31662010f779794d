"""One experiment a file: `get_config()` returns it, the docstring says what to expect of it."""
