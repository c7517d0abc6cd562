"""The task interface: a data distribution with a known answer."""

from typing import Any, NamedTuple

import equinox as eqx
from jaxtyping import Array, PRNGKeyArray

from krogh.errors import InputError


class Batch(NamedTuple):
    """Examples along the leading axis; `y` is ±1 for binary tasks and a class index otherwise."""

    x: Any
    y: Any
    latents: dict[str, Array] | None = None


class Task(eqx.Module):
    """A data distribution; floats and arrays are leaves and may differ between replicas.

    A task defines `sample`. One whose randomness is cheaper to draw for many steps at once splits it
    into `draw` (compact random words) and `decode` (words to examples), with `sample = decode ∘ draw`.
    """

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        raise NotImplementedError

    @property
    def outputs(self) -> int:
        """Number of real outputs a network needs; 1 means that the sign is the prediction."""
        return 1

    @property
    def signs(self) -> bool:
        """Whether every input is a vector of ±1, exact in any floating-point format."""
        return False

    def sample(self, key: PRNGKeyArray, size: int) -> Batch:
        """`size` independent examples."""
        raise NotImplementedError

    def draw(self, key: PRNGKeyArray, size: int) -> Any:
        """Raw randomness for `size` examples."""
        return key

    def decode(self, raw: Any, size: int) -> Batch:
        """Examples made from what `draw` returned."""
        return self.sample(raw, size)

    def held_out(self, key: PRNGKeyArray, size: int) -> Batch:
        """Examples for validation: fresh ones, or those a task over a fixed data set keeps apart."""
        return self.sample(key, size)

    def instance(self, key: PRNGKeyArray) -> "Task":
        """This replica's own copy, with its random parts (a dictionary, a graph) drawn from `key`."""
        return self

    def enumerate(self) -> Batch:
        """The whole domain with equal weights: population quantities are means over it."""
        raise InputError(f"{type(self).__name__} cannot be enumerated; draw a sample instead")
