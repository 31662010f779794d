"""Mutations: chosen places, lines found again, and nearest tests."""

import ast

from tests.mutations.nearest import distances, find_users, nearest_tests
from tests.mutations.places import choose, list_mutations, locate, mutate

SOURCE = '''
"""1 < 2."""
import a
__all__ = ["f"]
LIMIT = 3


def f(x: "a < b" = 1.0, mask=None) -> "a & b":
    """Return 1 + 1."""
    if x < LIMIT and mask:
        raise UserError(f"{x + 1} < {LIMIT}")
    x = x + 1
    total += jnp.where(mask & ~x, x[i:n], -1).sum(axis=-1)
    return total, x


class A:
    def f(self):
        for i in range(self.n):
            g(i)
        return not self.done
'''
WANTED = {
    "LIMIT = 4",
    'def f(x: "a < b" = 2.0, mask=None) -> "a & b":',
    "if x <= LIMIT and mask:",
    "if x < LIMIT or mask:",
    "x = x - 1",
    "pass",
    "total += jnp.where(mask | ~x, x[i:n], -1).sum(axis=-1)",
    "total += jnp.where(mask, x[i:n], -1).sum(axis=-1)",
    "total += jnp.where(~(mask & ~x), x[i:n], -1).sum(axis=-1)",
    "total += jnp.where(mask & x, x[i:n], -1).sum(axis=-1)",
    "total += jnp.where(mask & ~x, x[i:(n) - 1], -1).sum(axis=-1)",
    "total += jnp.where(mask & ~x, x[i:n], 1).sum(axis=-1)",
    "total += jnp.where(mask & ~x, x[i:n], -1).mean(axis=-1)",
    "total += jnp.where(mask & ~x, x[i:n], -1).sum(axis=0)",
    "return (x, total)",
    "for i in range((self.n) - 1):",
    "return None",
    "return  self.done",
}


def test_all_mutations_of_a_source_are_listed():
    found = list_mutations("m.py", SOURCE)
    assert {mutation.mutated for mutation in found} >= WANTED
    for text in ("1 < 2", "__all__", "import a", "Return", "{x"):
        assert not any(text in mutation.line and mutation.mutated != "pass" for mutation in found)
    for mutation in found:
        assert mutate(SOURCE, locate({"m.py": SOURCE}, mutation)[1], mutation) != SOURCE


def test_seed_draws_from_all_packages():
    sources = {name: SOURCE for name in ("cpc/a.py", "cpc/losses/b.py", "experiments/bench/c.py")}
    chosen = choose(sources, 0, 10)
    assert chosen == choose(sources, 0, 10) != choose(sources, 1, 10)
    assert sorted(m.file for m in chosen) == ["cpc/a.py"] * 2 + ["cpc/losses/b.py"] * 8
    assert len({m[1:4] for m in chosen}) == 10
    assert {m.file for m in choose(sources, 0, 2, ["cpc/a.py"])} == {"cpc/a.py"}
    for mutation in chosen:
        text = mutate(SOURCE, locate(sources, mutation)[1], mutation)
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(SOURCE))


def test_equal_bytecode_is_not_a_mutation():
    assert not choose({"cpc/a.py": "if x:\n    y = 0 * -0\n    raise\n".replace("x", "f()")}, 0, 0)
    (chosen,) = choose({"cpc/a.py": "def f(x):\n    x = x\n"}, 0, 5) or [None]
    assert chosen.mutated == "pass"


def test_replay_finds_moved_lines():
    line = "        return not self.done"
    found = list_mutations("cpc/a.py", SOURCE)
    (mutation,) = {m for m in found if m.mutated == "return  self.done"}
    row = SOURCE.split("\n").index(line) + 1
    assert locate({"cpc/a.py": SOURCE}, mutation) == ("cpc/a.py", row)
    moved = {"cpc/a.py": "", "cpc/b.py": "\ndef g():\n    return not self.done", "cpc/c.py": SOURCE}
    assert locate(moved, mutation)[0] == "cpc/c.py"
    assert locate({"cpc/a.py": SOURCE.replace("self.done", "done")}, mutation) is None
    twice = SOURCE + line
    again = list_mutations("cpc/a.py", twice)
    (second,) = {m for m in again if m.mutated == "return  self.done" and m.occurrence == 1}
    assert locate({"cpc/a.py": twice}, second) == ("cpc/a.py", twice.count("\n") + 1)


def test_nearest_tests_import_the_function():
    sources = {
        "cpc/losses/__init__.py": "from cpc.losses.x import f\nfrom cpc.losses.y import g",
        "cpc/losses/x.py": "def f(): _h()\ndef _h(): pass",
        "cpc/losses/y.py": "from cpc.losses.x import f\ndef g(): f()",
        "cpc/far.py": "from cpc import losses\nlosses.g()",
        "tests/losses/test_x.py": "from cpc import losses\nlosses.f",
        "tests/losses/test_g.py": "from cpc.losses import g",
        "tests/test_far.py": "run('cpc.far')",
        "tests/test_none.py": "import numpy",
    }
    users = find_users(sources)
    assert distances(sources, users, "cpc/losses/x.py", "_h")["tests/losses/test_x.py"] == 1
    found = nearest_tests(sources, users, "cpc/losses/x.py", "f")
    assert [test.split("/")[-1] for test in found] == ["test_x.py", "test_g.py", "test_far.py"]
