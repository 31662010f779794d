"""Mutations: chosen places, lines found again, and nearest tests."""

import ast

from tests.mutations.places import choose, list_mutations, locate, mutate, nearest_tests

SOURCE = '''
"""1 < 2."""
__all__ = ["f"]


def f(x: "a < b" = 1.0, mask=None) -> "a & b":
    if x < LIMIT and mask:
        raise UserError(f"{x + 1} < {LIMIT}")
    total += jnp.where(mask & ~x, x[i:n], -1).sum(axis=-1)
    return total, x


class A:
    def f(self):
        for i in range(self.n):
            g(i)
        return not self.done
'''
WANTED = {
    'def f(x: "a < b" = 2.0, mask=None) -> "a & b":',
    "if x <= LIMIT and mask:",
    "if x < LIMIT or mask:",
    "pass",
    "total += jnp.where(mask | ~x, x[i:n], -1).sum(axis=-1)",
    "total += jnp.where(mask, x[i:n], -1).sum(axis=-1)",
    "total += jnp.where(~(mask & ~x), x[i:n], -1).sum(axis=-1)",
    "total += jnp.where(mask & ~x, x[i:n - 1], -1).sum(axis=-1)",
    "total += jnp.where(mask & ~x, x[i:n], -1).mean(axis=-1)",
    "return (x, total)",
    "for i in range(self.n - 1):",
    "return None",
    "return (self.done)",
}


def test_mutations_are_listed_drawn_and_found_again():
    found = list_mutations("cpc/a.py", SOURCE)
    assert {mutation.mutated for mutation in found} >= WANTED
    for text in ("1 < 2", "__all__", "{x"):
        assert not any(text in mutation.line and mutation.mutated != "pass" for mutation in found)
    sources = {name: SOURCE for name in ("cpc/a.py", "cpc/losses/b.py", "experiments/bench/c.py")}
    chosen = choose(sources, 0, 10)
    assert chosen == choose(sources, 0, 10) != choose(sources, 1, 10)
    assert {m.file for m in chosen} == {"cpc/a.py", "cpc/losses/b.py"}
    assert len({m[1:4] for m in chosen}) == 10
    assert {m.file for m in choose(sources, 0, 2, ["cpc/a.py"])} == {"cpc/a.py"}
    for mutation in chosen:
        text = mutate(SOURCE, locate(sources, mutation)[1], mutation)
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(SOURCE))
    (last,) = {mutation for mutation in found if mutation.mutated == "return (self.done)"}
    moved = {"cpc/a.py": "", "cpc/b.py": "\ndef g():\n    return not self.done", "cpc/c.py": SOURCE}
    assert locate(moved, last) == ("cpc/c.py", SOURCE.count("\n"))
    assert locate({"cpc/a.py": SOURCE.replace("self.done", "done")}, last) is None


def test_nearest_tests_name_the_function():
    sources = {
        "cpc/losses/x.py": "def f(): _h()\ndef _h(): pass",
        "tests/losses/test_x.py": "from cpc import losses\nlosses.f",
        "tests/losses/test_g.py": "from cpc.losses import f",
        "tests/losses/test_other.py": "from cpc.losses import g",
        "tests/test_far.py": "run('cpc.losses', 'f')",
        "tests/test_none.py": "import numpy",
    }
    found = [test.split("test_")[1] for test in nearest_tests(sources, "cpc/losses/x.py", "_h")]
    assert found == ["x.py", "g.py", "far.py", "other.py", "none.py"]
