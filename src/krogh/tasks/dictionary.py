"""Inputs that are sums of dictionary patterns, labelled by which of k hidden relevant patterns are present."""

import math
import warnings
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Key

from krogh.errors import InputError
from krogh.tasks.base import Batch, Task


class PatternDictionary(Task):
    """x = (M phi~ + zeta - E) / sigma~ with patterns phi~ in {0,1}^D, E = E[M phi~], zeta ~ N(0, noise^2 I_d) and
    sigma~^2 = sum_j Var(phi~_j) + d noise^2; the relevant patterns A are the first k (000 eq. 2.1, A.292).

    `d = None` means the reduced coordinates M = I_D, exact for orthonormal M wherever only M^T w matters; with `d`
    every replica draws its own orthonormal M, or with `coherence` > 0 adds `coherence` times a random unit vector
    to each column and renormalises.
    """

    D: int = eqx.field(static=True, default=100)
    k: int = eqx.field(static=True, default=5)
    d: int | None = eqx.field(static=True, default=None)
    noise: float | None = None
    coherence: float = eqx.field(static=True, default=0.0)
    dictionary: Float[Array, "d D"] | None = None

    def __post_init__(self):
        # NaN until `instance` draws it: a run's tasks keep one tree structure.
        if self.d is not None and self.dictionary is None:
            self.dictionary = jnp.full((self.d, self.D), jnp.nan)

    def __check_init__(self):
        if not 0 < self.k <= self.D:
            raise InputError(f"k must lie between 1 and D = {self.D}, not {self.k}.")
        if self.d is not None and self.d < self.D:
            raise InputError(f"An orthonormal dictionary needs d >= D = {self.D}, not d = {self.d}.")

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.D if self.d is None else self.d,)

    @property
    def outputs(self) -> int:
        return 1

    @property
    def means(self) -> Float[Array, " D"]:
        """E[phi~_j]."""
        raise NotImplementedError

    @property
    def gamma(self) -> Any:
        """gamma = E[y phi~_i] - E[y] E[phi~_i] for i in A, of the structured family (000 A1)."""
        raise NotImplementedError

    def patterns(self, key: Key[Array, ""], size: int) -> tuple[Float[Array, "size D"], Float[Array, " size"]]:
        """The hidden vectors phi~ and the labels."""
        raise NotImplementedError

    @property
    def variance(self) -> Float[Array, ""]:
        """sigma~^2 = sum_j Var(phi~_j) + d noise^2."""
        total = jnp.sum(self.means * (1 - self.means))
        return total if self.noise is None else total + self.in_shape[0] * self.noise**2

    @property
    def feature(self) -> Float[Array, " d"]:
        """The effective feature sum_{j in A} M_j."""
        relevant = (jnp.arange(self.D) < self.k).astype(float)
        return relevant if self.dictionary is None else self.dictionary @ relevant

    def project(self, w: Float[Array, "d *rest"]) -> Float[Array, "D *rest"]:
        """M^T w, the components along the patterns."""
        return w if self.dictionary is None else jnp.tensordot(self.dictionary.T, w, 1)

    def instance(self, key: Key[Array, ""]) -> "PatternDictionary":
        if self.d is None:
            return self
        basis, perturbation = jr.split(key)
        matrix = jnp.linalg.qr(jr.normal(basis, (self.d, self.D)))[0]
        if self.coherence:
            extra = jr.normal(perturbation, matrix.shape)
            matrix = matrix + self.coherence * extra / jnp.linalg.norm(extra, axis=0)
            matrix = matrix / jnp.linalg.norm(matrix, axis=0)
        return eqx.tree_at(lambda t: t.dictionary, self, matrix)

    def sample(self, key: Key[Array, ""], size: int) -> Batch:
        hidden, dense = jr.split(key)
        phi, y = self.patterns(hidden, size)
        x = phi - self.means
        if self.dictionary is not None:
            x = x @ self.dictionary.T
        if self.noise is not None:
            x = x + self.noise * jr.normal(dense, x.shape)
        return Batch(x / jnp.sqrt(self.variance), y)


class ParityDictionary(PatternDictionary):
    """y = +1 iff sum_A phi~ is odd (k odd). With structure D_mix = p_o D0 + (1-p_o) D1: D0 uniform bits; D1 background
    Bernoulli(p_o/(2-2p_o)) and phi~_A all 0 or all 1. Without: D0 alone (000 A.7.1).

    `negative` is the share of label -1; each class keeps its conditional law. gamma = (1-p_o)/2, for
    unequal classes in the sense of A.8, (E[phi~_i | +] - E[phi~_i | -]) / 2.
    """

    structure: float | Array = 1.0
    p_o: float = eqx.field(static=True, default=0.5)
    negative: float | Array = 0.5

    def __check_init__(self):
        if self.k % 2 == 0:
            raise InputError(f"The parity mixture needs odd k, not {self.k}: all ones must be a positive.")
        if not 0 < self.p_o <= 0.5:
            raise InputError(f"p_o must lie in (0, 1/2], not {self.p_o}.")
        if self.p_o != 0.5:
            warnings.warn("With p_o != 1/2 the mixture makes background patterns dependent: (A2) fails.", stacklevel=3)

    @property
    def gamma(self) -> float:
        return (1 - self.p_o) / 2

    @property
    def means(self) -> Float[Array, " D"]:
        inside = jnp.arange(self.D) < self.k
        mixed = jnp.where(inside, self.p_o / 2 + (1 - self.p_o) * (1 - self.negative), self.p_o)
        return self.structure * mixed + (1 - self.structure) / 2

    def patterns(self, key, size):
        label, rounding, component, bits, flip = jr.split(key, 5)
        # Labels first, in exact proportion (the rounding is random, hence unbiased); a uniform code of the wrong
        # parity has one relevant bit flipped, which leaves it uniform given its label.
        positive = jr.permutation(label, jnp.arange(size) + jr.uniform(rounding) >= self.negative * size)
        uniform = jr.bernoulli(component, 1 - self.structure * (1 - self.p_o), (size, 1))
        background = jnp.where(uniform, 0.5, self.p_o / (2 - 2 * self.p_o))
        phi = jr.uniform(bits, (size, self.D)) < background
        odd = jnp.sum(phi[:, : self.k], axis=1) % 2 == 1
        which = jr.randint(flip, (size, 1), 0, self.k)
        wrong = ((odd != positive)[:, None]) & (jnp.arange(self.k) == which)
        relevant = jnp.where(uniform, phi[:, : self.k] ^ wrong, positive[:, None])
        phi = jnp.concatenate([relevant, phi[:, self.k :]], axis=1)
        return phi.astype(float), jnp.where(positive, 1.0, -1.0)


class IntervalDictionary(PatternDictionary):
    """y = +1 iff low <= sum_A phi~ <= high, independent patterns, Pr[phi~=1] = 2/3 on A with structure, 1/2 elsewhere;
    classes as they fall, not resampled (000 A.7.1).

    gamma = 2 p(1-p) (Pr[Bin(k-1,p) = low-1] - Pr[Bin(k-1,p) = high]).
    """

    k: int = eqx.field(static=True, default=30)
    low: int = eqx.field(static=True, default=20)
    high: int = eqx.field(static=True, default=30)
    structure: float | Array = 1.0

    @property
    def gamma(self) -> float:
        p = 2 / 3
        return 2 * p * (1 - p) * (_binomial(self.k - 1, p, self.low - 1) - _binomial(self.k - 1, p, self.high))

    @property
    def positive(self) -> float:
        """Pr[y = +1]."""
        p = 1 / 2 + float(self.structure) / 6
        return sum(_binomial(self.k, p, s) for s in range(self.low, self.high + 1))

    @property
    def means(self) -> Float[Array, " D"]:
        return 1 / 2 + jnp.where(jnp.arange(self.D) < self.k, self.structure / 6, 0.0)

    def patterns(self, key, size):
        phi = (jr.uniform(key, (size, self.D)) < self.means).astype(float)
        count = jnp.sum(phi[:, : self.k], axis=1)
        return phi, jnp.where((count >= self.low) & (count <= self.high), 1.0, -1.0)


class LookupDictionary(PatternDictionary):
    """phi~_A is one of `words` random binary words, the first half labelled +1; background fair bits (000 A.7.3)."""

    D: int = eqx.field(static=True, default=250)
    k: int = eqx.field(static=True, default=50)
    words: int = eqx.field(static=True, default=100)
    codes: Float[Array, "words k"] | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.codes is None:
            self.codes = jnp.full((self.words, self.k), jnp.nan)

    def instance(self, key):
        drawn, dictionary = jr.split(key)
        codes = jr.bernoulli(drawn, 0.5, (self.words, self.k)).astype(float)
        return eqx.tree_at(lambda t: t.codes, super().instance(dictionary), codes)

    @property
    def means(self) -> Float[Array, " D"]:
        assert self.codes is not None
        return jnp.concatenate([jnp.mean(self.codes, axis=0), jnp.full(self.D - self.k, 0.5)])

    @property
    def gamma(self) -> Float[Array, ""]:
        """The largest |(E[phi~_i | +] - E[phi~_i | -]) / 2| over A: here the k values differ."""
        return jnp.max(jnp.abs(self.contrast))

    @property
    def contrast(self) -> Float[Array, " k"]:
        """(E[phi~_A | +] - E[phi~_A | -]) / 2."""
        assert self.codes is not None
        half = self.words // 2
        return (jnp.mean(self.codes[:half], axis=0) - jnp.mean(self.codes[half:], axis=0)) / 2

    @property
    def feature(self) -> Float[Array, " d"]:
        """sum_{j in A} contrast_j M_j, the direction of E[y x]."""
        weights = jnp.concatenate([self.contrast, jnp.zeros(self.D - self.k)])
        return weights if self.dictionary is None else self.dictionary @ weights

    def patterns(self, key, size):
        assert self.codes is not None
        word, bits = jr.split(key)
        index = jr.randint(word, (size,), 0, self.words)
        background = jr.bernoulli(bits, 0.5, (size, self.D - self.k)).astype(float)
        phi = jnp.concatenate([self.codes[index], background], axis=1)
        return phi, jnp.where(index < self.words // 2, 1.0, -1.0)


def _binomial(n: int, p: float, s: int) -> float:
    return math.comb(n, s) * p**s * (1 - p) ** (n - s) if 0 <= s <= n else 0.0


def max_coherence(dictionary: Float[Array, "d D"]) -> Float[Array, ""]:
    """max_{i != j} |<M_i, M_j>|."""
    gram = dictionary.T @ dictionary
    return jnp.max(jnp.abs(gram - jnp.diag(jnp.diag(gram))))
