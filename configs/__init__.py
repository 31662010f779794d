"""One experiment per file: `get_config()` returns it, the docstring says what to expect."""
