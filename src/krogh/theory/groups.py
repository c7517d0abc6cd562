"""Finite groups, their classes, characters and real irreducible representations, computed (003 §7.6.1, §D.8)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, permutations, product
from string import ascii_lowercase
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from krogh.errors import InputError, check_integer


def check_table(table: np.ndarray) -> None:
    """Refuse a multiplication table that is not a group's, naming the elements at fault.

    Associativity by Light's test: (x g) y = x (g y) for the generators g alone is enough, n² per generator.
    """
    table = np.asarray(table)
    n = len(table) if table.ndim else 0
    if table.ndim != 2 or n == 0 or table.shape != (n, n) or table.dtype.kind not in "iu":
        raise InputError(f"a multiplication table must be a square array of whole numbers, got shape {table.shape}")
    outside = np.argwhere((table < 0) | (table >= n))
    if len(outside):
        a, b = outside[0]
        raise InputError(f"the product {a}·{b} is {table[a, b]}, which is not one of the elements 0 to {n - 1}")
    everyone = np.arange(n)
    left, right = (table == everyone).all(axis=1), (table == everyone[:, None]).all(axis=0)
    units = np.flatnonzero(left & right)
    if not len(units):
        one_sided = np.flatnonzero(left | right)
        near = f"; element {one_sided[0]} is one on one side only" if len(one_sided) else ""
        raise InputError(f"the table has no identity: no element e with e·x = x·e = x for all x{near}")
    identity = int(units[0])
    for a, row in enumerate(table == identity):
        both = row & (table[:, a] == identity)
        if not both.any():
            raise InputError(f"element {a} has no inverse: no b with {a}·b = b·{a} = {identity}, the identity")
    for g in _generators(table, identity):
        wrong = np.argwhere(table[table[:, g]] != table[:, table[g]])
        if len(wrong):
            x, y = wrong[0]
            one, other = table[table[x, g], y], table[x, table[g, y]]
            raise InputError(f"the table is not associative: ({x}·{g})·{y} = {one}, but {x}·({g}·{y}) = {other}")


def _generators(table: np.ndarray, identity: int) -> list[int]:
    """Elements whose repeated products from either side give all others, found greedily."""
    reached = np.zeros(len(table), bool)
    reached[identity] = True
    generators: list[int] = []
    while not reached.all():
        generators.append(int(np.flatnonzero(~reached)[0]))
        reached[generators[-1]] = True
        while True:
            found = np.flatnonzero(reached)
            products = table[np.ix_(found, found)].ravel()
            if reached[products].all():
                break
            reached[products] = True
    return generators


@dataclass(frozen=True, eq=False)
class Group:
    """A finite group: `table[a, b]`, held as an array, is the number of the product of elements a and b."""

    table: Any
    name: str = "G"
    elements: tuple[Any, ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "table", np.asarray(self.table))
        check_table(self.table)

    @property
    def order(self) -> int:
        return len(self.table)

    @cached_property
    def identity(self) -> int:
        return int(np.flatnonzero((self.table == np.arange(self.order)).all(axis=1))[0])

    @cached_property
    def inverse(self) -> Int[np.ndarray, " n"]:
        return np.argmax(self.table == self.identity, axis=1)

    @cached_property
    def class_of(self) -> Int[np.ndarray, " n"]:
        """Number of each element's conjugacy class; class 0 is the identity's."""
        conjugates = self.table[self.table, self.inverse[:, None]]
        first = conjugates.min(axis=0)
        order = sorted(set(first.tolist()), key=lambda c: (c != first[self.identity], (first == c).sum(), c))
        return np.array([order.index(c) for c in first])

    @cached_property
    def classes(self) -> list[Int[np.ndarray, " size"]]:
        """Conjugacy classes {g a g⁻¹}, the identity's first, then by size."""
        return [np.flatnonzero(self.class_of == c) for c in range(self.class_of.max() + 1)]

    @cached_property
    def class_sizes(self) -> Int[np.ndarray, " classes"]:
        return np.array([len(members) for members in self.classes])

    @cached_property
    def class_names(self) -> list[str]:
        """Cycle types for permutations (with a letter where two classes share one), else the smallest element."""
        if not self.elements or not all(map(is_permutation, self.elements)):
            return [f"class of {members[0]}" for members in self.classes]
        types = [cycle_type(self.elements[members[0]]) for members in self.classes]
        return told_apart(["·".join(map(str, t)) if t else "e" for t in types])

    @cached_property
    def irreps(self) -> list["Irrep"]:
        """The real irreducible representations, trivial first, then by dimension."""
        return real_irreps(self)


def from_generators(
    generators: Sequence[Any], multiply: Callable[[Any, Any], Any] | None = None, name: str = "G"
) -> Group:
    """The group that some elements generate: permutations as tuples, or anything with a `multiply`.

    from_generators([(1, 2, 0), (1, 0, 2)]) is S_3; (p·q)(i) = p(q(i)).
    """
    if not generators:
        raise InputError("a group needs at least one generator")
    if multiply is None:
        for g in generators:
            if not is_permutation(g) or len(g) != len(generators[0]):
                raise InputError(f"a permutation is a tuple of 0 to n − 1 in some order, all of one length; got {g!r}")
        multiply = compose
    elements = dict.fromkeys(generators)
    frontier = list(elements)
    while frontier:
        found = dict.fromkeys(multiply(a, g) for a in frontier for g in generators)
        frontier = [a for a in found if a not in elements]
        elements.update(dict.fromkeys(frontier))
        if len(elements) > 5000:
            raise InputError("these generators give more than 5000 elements; larger groups are not enumerated")
    listed = sorted(elements) if multiply is compose else list(elements)
    number = {a: i for i, a in enumerate(listed)}
    table = np.array([[number[multiply(a, b)] for b in listed] for a in listed])
    return Group(table, name, tuple(listed))


def is_permutation(element: Any) -> bool:
    """Whether it is a tuple of 0, …, n − 1 in some order."""
    return isinstance(element, tuple) and set(element) == set(range(len(element)))


def told_apart(names: Sequence[str]) -> list[str]:
    """Names that occur more than once get a letter: a, …, z, aa, ab, …"""

    def letters(i: int) -> str:
        return (letters(i // 26 - 1) if i >= 26 else "") + ascii_lowercase[i % 26]

    return [n if names.count(n) == 1 else n + letters(names[:i].count(n)) for i, n in enumerate(names)]


def compose(p: tuple[int, ...], q: tuple[int, ...]) -> tuple[int, ...]:
    """(p·q)(i) = p(q(i))."""
    return tuple(p[i] for i in q)


def cycle_type(p: tuple[int, ...]) -> tuple[int, ...]:
    """Lengths of a permutation's cycles of two and more, longest first."""
    seen: set[int] = set()
    lengths = []
    for start in range(len(p)):
        length, i = 0, start
        while i not in seen:
            seen.add(i)
            i, length = p[i], length + 1
        lengths.append(length)
    return tuple(sorted((length for length in lengths if length > 1), reverse=True))


def cyclic(n: int) -> Group:
    """Z_n under addition."""
    check_integer("n", n, least=1)
    return Group((np.arange(n)[:, None] + np.arange(n)) % n, f"Z_{n}")


def symmetric(n: int) -> Group:
    """S_n, all permutations of n things, in lexicographic order."""
    check_integer("n", n, least=1, most=6)
    return _of_permutations(list(permutations(range(n))), f"S_{n}")


def alternating(n: int) -> Group:
    """A_n, the even permutations."""
    check_integer("n", n, least=3, most=6)
    even = [p for p in permutations(range(n)) if sum(length - 1 for length in cycle_type(p)) % 2 == 0]
    return _of_permutations(even, f"A_{n}")


def _of_permutations(listed: list[tuple[int, ...]], name: str) -> Group:
    rows = np.array(listed)
    n = rows.shape[1]
    # a permutation's number in base n tells it apart; products of all pairs are looked up by it
    codes = rows @ n ** np.arange(n)
    products = rows[:, rows] @ n ** np.arange(n)
    order = np.argsort(codes)
    return Group(order[np.searchsorted(codes[order], products)], name, tuple(listed))


def dihedral(n: int) -> Group:
    """D_n, the 2n symmetries of the regular n-gon (n ≥ 3)."""
    check_integer("n", n, least=3)
    turn, flip = tuple((i + 1) % n for i in range(n)), tuple(-i % n for i in range(n))
    return from_generators([turn, flip], name=f"D_{n}")


def quaternion() -> Group:
    """Q_8 = {±1, ±i, ±j, ±k}: its one representation of dimension 4 over the reals is of quaternionic type."""
    units = {(1, 2): (1, 3), (2, 3): (1, 1), (3, 1): (1, 2), (2, 1): (-1, 3), (3, 2): (-1, 1), (1, 3): (-1, 2)}

    def multiply(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        (s, i), (t, j) = a, b
        if i == 0 or j == 0:
            return s * t, i + j
        sign, unit = (-1, 0) if i == j else units[i, j]
        return s * t * sign, unit

    listed = [(s, i) for s, i in product((1, -1), range(4))]
    table = np.array([[listed.index(multiply(a, b)) for b in listed] for a in listed])
    return Group(table, "Q_8")


def named(name: str) -> Group:
    """A group by its name: Z_n, S_n, A_n, D_n or Q_8."""
    kinds = {"Z": cyclic, "S": symmetric, "A": alternating, "D": dihedral}
    kind, _, size = name.partition("_")
    if name == "Q_8":
        return quaternion()
    if kind not in kinds or not size.isdigit():
        raise InputError(f"a group's name is Z_n, S_n, A_n, D_n or Q_8, got {name!r}")
    return kinds[kind](int(size))


class Irrep(NamedTuple):
    """A real irreducible representation: `matrices[g]` is orthogonal.

    `kind` = ⟨χ, χ⟩ is the dimension of what commutes with it: 1 real type, 2 complex, 4 quaternionic. Only the first
    stays irreducible over the complex numbers; matrix elements of the others span d²/kind dimensions.
    """

    matrices: Float[np.ndarray, "n d d"]
    kind: int

    @property
    def dim(self) -> int:
        return self.matrices.shape[1]

    @property
    def character(self) -> Float[np.ndarray, " n"]:
        """χ(g) = tr R(g)."""
        return np.trace(self.matrices, axis1=1, axis2=2)


def real_irreps(group: Group, seed: int = 0) -> list[Irrep]:
    """Every real irreducible representation, by splitting the regular one.

    M = Σ_g c_g ρ(g) with c_g = c_{g⁻¹} random, ρ the right regular representation, is symmetric and commutes with the
    left one; its eigenspaces are irreducible under that with probability one. Checked by `orthogonality_error`.
    """
    n = group.order
    for attempt in range(5):
        coefficients = np.random.default_rng((seed, attempt)).normal(size=n)
        coefficients = coefficients + coefficients[group.inverse]
        # M[x, y] = c of the g with x g = y
        values, vectors = np.linalg.eigh(coefficients[group.table[group.inverse]])
        cuts = [0, *(np.flatnonzero(np.diff(values) > 1e-9 * np.abs(values).max()) + 1), n]
        irreps = _distinct([vectors[:, a:b] for a, b in pairwise(cuts)], group)
        complete = math.isclose(sum(r.dim**2 / r.kind for r in irreps), n)
        if complete and orthogonality_error(irreps) < 1e-10 and homomorphism_error(group, irreps) < 1e-10:
            break
    else:
        raise InputError(f"the regular representation of {group.name} could not be split to 1e-10")
    key = [tuple(np.round([r.dim, *-r.character[[c[0] for c in group.classes]]], 6)) for r in irreps]
    ordered = [irreps[i] for i in sorted(range(len(irreps)), key=key.__getitem__)]
    trivial = next(i for i, r in enumerate(ordered) if r.dim == 1 and np.all(r.matrices > 0))
    return [ordered.pop(trivial), *ordered]


def _distinct(spaces: list[np.ndarray], group: Group) -> list[Irrep]:
    found: list[Irrep] = []
    representatives = [members[0] for members in group.classes]
    seen: list[np.ndarray] = []
    for basis in spaces:
        moved = basis[group.table[group.inverse[representatives]]]
        character = np.einsum("gxi,xi->g", moved, basis)
        if any(np.allclose(character, other, atol=1e-6) for other in seen):
            continue
        seen.append(character)
        matrices = np.einsum("xi,gxj->gij", basis, basis[group.table[group.inverse]], optimize=True)
        kind = round(float(character**2 @ group.class_sizes) / group.order)
        found.append(Irrep(matrices, kind))
    return found


def orthogonality_error(irreps: Sequence[Irrep]) -> float:
    """Largest violation of Σ_g R(g)_ij S(g)_kl = (|G|/d) δ_RS δ_ik δ_jl, over all real-type pairs, divided by |G|/d;
    of orthogonality between different representations and of Σ_g R_ij² = |G|/d for the others (003 Prop D.7).
    """
    order = len(irreps[0].matrices)
    scaled = [r.matrices.reshape(order, -1) * math.sqrt(r.dim / order) for r in irreps]
    worst = 0.0
    for i, (r, a) in enumerate(zip(irreps, scaled, strict=True)):
        gram = a.T @ a
        wanted = np.eye(len(gram)) if r.kind == 1 else np.where(np.eye(len(gram)), 1.0, gram)
        worst = max(worst, float(np.abs(gram - wanted).max()))
        for b in scaled[:i]:
            worst = max(worst, float(np.abs(a.T @ b).max()))
    return worst


def homomorphism_error(group: Group, irreps: Sequence[Irrep]) -> float:
    """Largest entry of R(a) R(g) − R(ag) over generators g, all a and all representations."""
    generators = _generators(group.table, group.identity)
    return max(
        (
            float(np.abs(r.matrices @ r.matrices[g] - r.matrices[group.table[:, g]]).max())
            for r in irreps
            for g in generators
        ),
        default=0.0,
    )


def character_table(group: Group) -> Float[np.ndarray, "irreps classes"]:
    """χ_R(C), rows in the order of `group.irreps`."""
    return np.array([r.character[[members[0] for members in group.classes]] for r in group.irreps])


def isotypic_basis(group: Group) -> tuple[Float[np.ndarray, "n n"], Int[np.ndarray, " n"]]:
    """An orthonormal basis of the functions on G, one column each, and the irrep each column belongs to.

    For a real type the columns are √(d/|G|) R(·)_ij (003 §7.6.1); on Z_n they are the cosines and sines.
    """
    columns, owners = [], []
    for i, irrep in enumerate(group.irreps):
        elements = irrep.matrices.reshape(group.order, -1) * math.sqrt(irrep.dim / group.order)
        if irrep.kind > 1:
            left, size, _ = np.linalg.svd(elements, full_matrices=False)
            elements = left[:, size > 1e-6 * size[0]]
        columns.append(elements)
        owners += [i] * elements.shape[1]
    return np.concatenate(columns, axis=1), np.array(owners)
