"""What every task promises: examples of the shape that networks are built for, drawn from the key alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from krogh import tasks
from krogh.tasks.chain_of_thought import ChainPrompts
from krogh.tasks.clusters import ClusterParity
from krogh.tasks.dictionary import IntervalDictionary, LookupDictionary, ParityDictionary
from krogh.tasks.parity_prompts import ParityPrompts
from krogh.tasks.pattern_prompts import pattern_prompts
from krogh.tasks.regression_prompts import RegressionPrompts
from krogh.tasks.sentiment_prompts import SentimentPrompts
from krogh.tasks.tabular import RuleTable
from krogh.tasks.vector_generation import VectorGeneration
from krogh.theory.groups import symmetric

TASKS = [
    tasks.BlockParity(12, 3, 3),
    ChainPrompts(M=6, K=3, d=10, examples=4),
    ChainPrompts(M=6, K=3, d=10, examples=4, columns=13),
    ClusterParity(10, 2),
    ParityDictionary(D=12, k=3),
    ParityDictionary(D=12, k=3, d=20, noise=0.1),
    IntervalDictionary(D=12, k=4, low=2, high=4),
    LookupDictionary(D=12, k=4, words=5),
    tasks.GroupComposition(symmetric(3).table),
    tasks.TwoClasses(tasks.SparseParity(6, 2)),
    tasks.MarkovChains(3, t=7),
    tasks.MarkovChains(2, t=9, n=3),
    tasks.xor_mixture(8, 0.5),
    tasks.orthogonal_mixture((1.0, -1.0, 1.0), 8, 2.0),
    tasks.LinearMargin(7),
    tasks.ModularAddition(5, 3),
    tasks.MultiIndex(6),
    tasks.OfflineParity(9, 3, m=20.0),
    tasks.SparseParity(9, 3),
    tasks.DisjointParity(9, 3),
    tasks.LabelNoise(tasks.SparseParity(9, 3)),
    ParityPrompts(5, 2, 6),
    pattern_prompts(),
    RegressionPrompts((1.0, 0.5, 0.2), 6),
    RegressionPrompts((1.0, 0.5, 0.2), 6, rotated=True),
    SentimentPrompts(8, 3, 4, irrelevant=2),
    tasks.SparseBoolean(9),
    RuleTable(9),
    VectorGeneration(5, 3),
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)
def test_examples_have_the_shape_networks_are_built_for(task):
    task = task.instance(jax.random.key(0))
    batch, same, other = (task.sample(jax.random.key(seed), 11) for seed in (1, 1, 2))
    assert batch.x.shape == (11, *task.in_shape)
    assert len(batch.y) == 11
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), batch, same))
    assert not np.array_equal(batch.x, other.x)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)
def test_a_network_has_an_output_for_every_class_or_number_of_a_label(task):
    y = np.asarray(task.instance(jax.random.key(0)).sample(jax.random.key(1), 60).y)
    if np.issubdtype(y.dtype, np.integer):
        assert set(np.unique(y)) == set(range(task.outputs))
    else:
        assert np.isfinite(y).all() and y.shape[1:] in ((), (task.outputs,)) and task.outputs == y[0].size
