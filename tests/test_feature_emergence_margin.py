"""Finite groups and their representations, margins and certificates, and the networks and probes of system 16."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import krogh as kr
from krogh.errors import InputError
from krogh.nn.tables import LookupNetwork, neurons
from krogh.probes.margins import NormalisedMargin, margins
from krogh.probes.spectra import IrrepPower, frequencies, frequency_power
from krogh.systems.feature_emergence_margin.groups import irrep_names
from krogh.tasks.labels import TwoClasses
from krogh.tasks.parity import cube
from krogh.theory import groups
from krogh.theory import margins as theory
from krogh.train.objectives import NeuronDecay
from krogh.train.schedules import Doubling

SMALL = ("Z_7", "Z_8", "S_3", "S_4", "A_4", "D_4", "D_5", "Q_8")


# ------------------------------------------------------------------------------------------- groups


@pytest.mark.parametrize("name", [*SMALL, "S_5", "A_5"])
def test_irreps_are_orthogonal_homomorphisms_that_exhaust_the_group(name):
    group = groups.named(name)
    assert groups.orthogonality_error(group.irreps) < 1e-10
    for irrep in group.irreps:
        products = np.einsum("aij,bjk->abik", irrep.matrices, irrep.matrices)
        np.testing.assert_allclose(products, irrep.matrices[group.table], atol=1e-10)
    assert sum(r.dim**2 // r.kind for r in group.irreps) == group.order
    basis, owner = groups.isotypic_basis(group)
    np.testing.assert_allclose(basis.T @ basis, np.eye(group.order), atol=1e-10)
    assert [int((owner == i).sum()) for i in range(len(group.irreps))] == [r.dim**2 // r.kind for r in group.irreps]


@pytest.mark.parametrize(
    "name, dims, kinds",
    [
        ("S_3", [1, 1, 2], [1, 1, 1]),
        ("S_5", [1, 1, 4, 4, 5, 5, 6], [1] * 7),
        ("A_4", [1, 2, 3], [1, 2, 1]),
        ("Z_8", [1, 1, 2, 2, 2], [1, 1, 2, 2, 2]),
        ("D_4", [1, 1, 1, 1, 2], [1] * 5),
        ("D_5", [1, 1, 2, 2], [1] * 4),
        ("Q_8", [1, 1, 1, 1, 4], [1, 1, 1, 1, 4]),
    ],
)
def test_dimensions_and_types_of_known_groups(name, dims, kinds):
    irreps = groups.named(name).irreps
    assert [r.dim for r in irreps] == dims
    assert [r.kind for r in irreps] == kinds


def test_characters_are_constant_on_classes_and_orthogonal():
    group = groups.symmetric(4)
    for irrep in group.irreps:
        for members in group.classes:
            assert np.ptp(irrep.character[members]) < 1e-10
    table = groups.character_table(group)
    np.testing.assert_allclose(table * group.class_sizes @ table.T / group.order, np.eye(5), atol=1e-10)


def test_generators_give_the_group_they_generate():
    assert groups.from_generators([(1, 2, 0), (1, 0, 2)]).order == 6
    assert groups.from_generators([(1, 2, 3, 4, 0), (1, 2, 0, 3, 4)]).order == 60
    turns = groups.from_generators([2], lambda a, b: (a + b) % 10)
    assert turns.order == 5
    with pytest.raises(InputError, match=r"\(0, 0, 1\)"):
        groups.from_generators([(0, 0, 1)])


def test_tables_that_are_no_groups_are_refused_with_the_elements_at_fault():
    loop = np.array([[0, 1, 2, 3, 4], [1, 0, 3, 4, 2], [2, 4, 0, 1, 3], [3, 2, 4, 0, 1], [4, 3, 1, 2, 0]])
    with pytest.raises(InputError, match="not associative") as refused:
        groups.check_table(loop)
    x, g, y = map(int, str(refused.value).split("(")[1].split(" =")[0].replace(")", "").split("·"))
    assert loop[loop[x, g], y] != loop[x, loop[g, y]]
    with pytest.raises(InputError, match="no identity"):
        groups.check_table(np.array([[1, 0], [0, 0]]))
    with pytest.raises(InputError, match="element 1 has no inverse"):
        groups.check_table(np.array([[0, 1], [1, 1]]))
    with pytest.raises(InputError, match="product 1·0 is 5"):
        groups.check_table(np.array([[0, 1], [5, 0]]))
    with pytest.raises(InputError, match="square"):
        groups.check_table(np.zeros((2, 3), int))
    with pytest.raises(InputError, match="not associative"):
        kr.tasks.GroupComposition(loop)


@pytest.mark.parametrize("kind", [list, jnp.asarray, np.asarray])
def test_tables_are_checked_and_used_whatever_holds_them(kind):
    with pytest.raises(InputError, match="element 1 has no inverse"):
        kr.tasks.GroupComposition(kind([[0, 1], [1, 1]]))
    with pytest.raises(InputError, match="element 1 has no inverse"):
        groups.Group(kind([[0, 1], [1, 1]]))
    addition = kind([[0, 1], [1, 0]])
    assert kr.tasks.GroupComposition(addition).enumerate().y.tolist() == [0, 1, 1, 0]
    assert [r.dim for r in groups.Group(addition).irreps] == [1, 1]


def test_names_of_classes_and_irreps_never_run_out_and_differ():
    for name in ("Z_19", "D_59"):
        group = groups.named(name)
        assert len(set(group.class_names)) == len(group.classes)
        assert len(set(irrep_names(group))) == len(group.irreps)
    assert groups.told_apart(["x"] * 28 + ["y"])[25:] == ["xz", "xaa", "xab", "y"]
    assert irrep_names(groups.named("S_4")) == ["1a", "1b", "2", "3a", "3b"]


def test_tuples_that_are_no_permutations_are_not_named_by_cycles():
    def product(a, b):
        return a[0] * b[0] % 7, (a[0] * b[1] + a[1]) % 7

    frobenius = groups.from_generators([(2, 0), (1, 1)], product)
    assert frobenius.order == 21 and all(name.startswith("class of") for name in frobenius.class_names)


def test_every_change_of_one_product_is_found():
    table = groups.symmetric(3).table
    for a in range(6):
        for b in range(6):
            wrong = table.copy()
            wrong[a, b] = (wrong[a, b] + 1) % 6
            with pytest.raises(InputError):
                groups.check_table(wrong)


# ------------------------------------------------------------------------------------------- task and network


def test_the_task_enumerates_and_samples_the_same_table():
    task = kr.tasks.GroupComposition(groups.symmetric(3).table, inputs=3)
    whole, some = task.enumerate(), task.sample(jax.random.key(0), 50)
    np.testing.assert_array_equal(task.table[task.table[whole.x[:, 0], whole.x[:, 1]], whole.x[:, 2]], whole.y)
    np.testing.assert_array_equal(whole.y[some.x @ jnp.array([36, 6, 1])], some.y)


@pytest.mark.parametrize("inputs", [1, 2, 3])
def test_the_network_is_a_sum_over_neurons_of_a_power_of_a_sum_of_rows(inputs):
    task = kr.tasks.GroupComposition(groups.cyclic(5).table, inputs)
    network = kr.nn.Lookup(width=4).build(task, jax.random.key(0))
    x = task.enumerate().x
    one_hot = jax.nn.one_hot(x, 5)
    expected = jnp.einsum("nje,jem->nm", one_hot, network.weights) ** inputs @ network.output
    np.testing.assert_allclose(jax.vmap(network)(x), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(network.on_domain(), expected, rtol=1e-5, atol=1e-5)
    assert neurons(network).shape == (4, (inputs + 1) * 5)


def test_the_objective_is_the_same_with_and_without_lookups():
    task = kr.tasks.GroupComposition(groups.symmetric(3).table)
    network, batch = kr.nn.Lookup(width=7).build(task, jax.random.key(0)), task.enumerate()
    values = [NeuronDecay(0.01, 3, whole)(network, batch, jax.random.key(0))[0] for whole in (False, True)]
    loss = -jax.nn.log_softmax(jax.vmap(network)(batch.x))[jnp.arange(36), batch.y].mean()
    norms = jnp.linalg.norm(neurons(network), axis=1)
    np.testing.assert_allclose(values, [loss + 0.01 * (norms**3).sum()] * 2, rtol=1e-5)


def test_the_rate_doubles_at_each_step_listed():
    schedule = Doubling((2, 4))
    assert [float(schedule(jnp.array(step))) for step in range(6)] == [1, 1, 2, 2, 4, 4]


def test_two_classes_number_the_signs():
    task = TwoClasses(kr.tasks.SparseParity(n=5, k=2))
    batch = task.enumerate()
    np.testing.assert_array_equal(batch.y, np.where(cube(5)[:, :2].prod(axis=1) > 0, 0, 1))


# ------------------------------------------------------------------------------------------- margins


@pytest.mark.parametrize("p", [5, 7, 13])
def test_constructed_addition_has_the_maximum_margin_everywhere(p):
    group, network = groups.cyclic(p), theory.cyclic_network(p)
    x, y = theory.pairs(group)
    outputs = theory.evaluate(network, x)
    np.testing.assert_allclose(theory.norm_power(network, 3), 1, rtol=1e-12)
    np.testing.assert_allclose(theory.point_margins(outputs, y), theory.cyclic_margin(p), rtol=1e-12)
    np.testing.assert_allclose(theory.balanced_margin(group), theory.cyclic_margin(p), rtol=1e-12)


@pytest.mark.parametrize("n, k", [(6, 2), (7, 3), (6, 4)])
def test_constructed_parity_has_the_maximum_margin_everywhere(n, k):
    network, x = theory.parity_network(n, k), cube(n).astype(float)
    y = (x[:, :k].prod(axis=1) < 0).astype(int)
    np.testing.assert_allclose(theory.norm_power(network, k + 1), 1, rtol=1e-12)
    np.testing.assert_allclose(theory.point_margins(network(x), y), theory.parity_margin(k), rtol=1e-12)
    assert theory.parity_bound(n, k, starts=20) == pytest.approx(theory.parity_margin(k), rel=1e-9)


@pytest.mark.parametrize("name", [*SMALL, "A_5"])
def test_programme_construction_and_certificate_meet(name):
    group = groups.named(name)
    best = theory.margin_programme(group)
    network = theory.group_network(group, best.shares)
    np.testing.assert_allclose(theory.norm_power(network, 3), 1, rtol=1e-12)
    bounds = theory.certificate(group, network, best.weights)
    np.testing.assert_allclose([bounds.lower, bounds.upper], best.margin, rtol=1e-9)
    covered = theory.balance(group).max() < 0
    assert covered == (name != "A_5")
    if covered:
        np.testing.assert_allclose(best.margin, theory.balanced_margin(group), rtol=1e-9)
        np.testing.assert_allclose(best.shares, theory.balanced_shares(group), atol=1e-9)
        np.testing.assert_allclose(theory.balanced_weights(group) @ group.class_sizes, 1, rtol=1e-12)
    else:
        assert best.margin > 1.03 * theory.balanced_margin(group)


def test_known_margins_of_symmetric_groups():
    known = {3: 2.360497e-2, 4: 2.076648e-3, 5: 1.325977e-4}
    for n, value in known.items():
        np.testing.assert_allclose(theory.balanced_margin(groups.symmetric(n)), value, rtol=1e-6)


def test_single_neuron_formulas_agree_with_enumeration():
    rng = np.random.default_rng(0)
    group = groups.cyclic(11)
    u, v, w = rng.normal(size=(3, 4, 11))
    tau = theory.wrong_label_weights(group, theory.balanced_weights(group))
    np.testing.assert_allclose(tau, (1 - np.eye(11)) / 10, atol=1e-12)
    direct = theory.class_weighted_margin(group.table, tau, u, v, w)
    np.testing.assert_allclose(theory.spectral_value(u, v, w), direct, atol=1e-12)
    group = groups.symmetric(4)
    weights = rng.dirichlet(np.ones(4)) / group.class_sizes[1:]
    weights = np.concatenate([[0.0], weights])
    u, v, w = rng.normal(size=(3, 24))
    direct = theory.class_weighted_margin(group.table, theory.wrong_label_weights(group, weights), u, v, w)
    np.testing.assert_allclose(theory.representation_value(group, weights, u, v, w), direct, atol=1e-12)


@pytest.mark.parametrize("name", ["Z_7", "S_3", "Q_8"])
def test_ascent_reaches_the_certificate_and_goes_no_further(name):
    group = groups.named(name)
    best = theory.margin_programme(group)
    tau = theory.wrong_label_weights(group, best.weights)
    values, found = theory.ascend(group, tau, starts=20)
    assert values.max() <= best.margin * (1 + 1e-9)
    np.testing.assert_allclose(values.max(), best.margin, rtol=1e-6)
    pure = np.asarray(IrrepPower(*groups.isotypic_basis(group)).shares(found.astype(np.float32))).max(axis=-1)
    assert pure[values > best.margin * (1 - 1e-6)].min() > 1 - 1e-4
    np.testing.assert_allclose(np.linalg.norm(found, axis=(1, 2)), 1)


def test_certificates_refuse_weights_that_are_no_distribution():
    group = groups.symmetric(3)
    with pytest.raises(InputError, match="nonnegative"):
        theory.certificate(group, theory.group_network(group), -theory.balanced_weights(group))


def test_the_memorising_network_is_exact_for_any_operation_and_worse():
    table = np.random.default_rng(0).integers(0, 5, (5, 5))
    network = theory.memorising_network(table, balanced=False)
    x = np.stack(np.divmod(np.arange(25), 5), axis=1)
    np.testing.assert_allclose(theory.evaluate(network, x), np.eye(5)[table.ravel()], atol=1e-12)
    best = theory.memorising_network(table)
    lowest = theory.point_margins(theory.evaluate(best, x), table.ravel()).min() / theory.norm_power(best, 3)
    np.testing.assert_allclose(lowest, theory.memorising_margin(5), rtol=1e-12)


# ------------------------------------------------------------------------------------------- probes


def test_the_margin_probe_reads_what_theory_says_of_a_constructed_network():
    group = groups.symmetric(3)
    exact = theory.group_network(group)
    network = LookupNetwork(
        jnp.asarray(2 * exact.weights, jnp.float32), jnp.asarray(2 * exact.output, jnp.float32), exact.activation
    )
    batch = kr.tasks.GroupComposition(group.table).enumerate()
    for whole in (False, True):
        margin = NormalisedMargin(3, whole)(network, batch)
        np.testing.assert_allclose(margin, theory.balanced_margin(group), rtol=1e-5)
    g = margins(jnp.array([[3.0, 1.0, 2.0], [0.0, 5.0, -1.0]]), jnp.array([0, 2]))
    np.testing.assert_allclose(g, [1, -6])


@pytest.mark.parametrize("p", [7, 8])
def test_frequency_power_pools_conjugates_and_sums_to_one(p):
    a = jnp.arange(p)
    for zeta in range(p // 2 + 1):
        wave = jnp.cos(2 * jnp.pi * zeta * a / p + 0.3)
        np.testing.assert_allclose(frequency_power(wave)[zeta], 1, atol=1e-5)
    random = jax.random.normal(jax.random.key(0), (3, p))
    np.testing.assert_allclose(frequency_power(random).sum(axis=-1), 1, rtol=1e-5)
    np.testing.assert_allclose(frequency_power(jnp.eye(p)[0]).max(), 2 / p, rtol=1e-5)


def test_frequencies_and_phases_of_the_construction_are_those_it_was_built_with():
    exact = theory.cyclic_network(11)
    found = frequencies(LookupNetwork(jnp.asarray(exact.weights), jnp.asarray(exact.output), exact.activation))
    np.testing.assert_allclose(found["power"], 1, atol=1e-5)
    np.testing.assert_array_equal(found["frequency"], np.tile(np.repeat(np.arange(1, 6), 8), (3, 1)))
    np.testing.assert_allclose(found["phase"], 0, atol=1e-4)


def test_irrep_power_on_a_cyclic_group_is_frequency_power():
    group = groups.cyclic(7)
    functions = jax.random.normal(jax.random.key(0), (5, 7))
    irreps = np.sort(IrrepPower(*groups.isotypic_basis(group)).shares(functions), axis=-1)
    np.testing.assert_allclose(irreps, np.sort(frequency_power(functions), axis=-1), atol=1e-5)


def test_training_raises_the_margin_towards_theory():
    group = groups.symmetric(3)
    run = kr.train(
        kr.tasks.GroupComposition(group.table),
        kr.nn.Lookup(width=30),
        kr.SGD(
            lr=0.05,
            batch=None,
            samples="all",
            objective=NeuronDecay(1e-7, 3, whole=True),
            schedule=Doubling(tuple(range(200, 2601, 200))),
        ),
        steps=4000,
        seeds=2,
        probes=[NormalisedMargin(3, whole=True)],
        validation="all",
        every=2000,
    )
    ratio = run.data.margin / theory.balanced_margin(group)
    assert (ratio.isel(step=0) < 0).all()
    assert ((ratio.isel(step=-1) > 0.5) & (ratio.isel(step=-1) < 1)).all()
