"""How the trained model does it: attention selects, neurons read the label (004 §6.4, Figures 6.1 and 6.2)."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, at_most, equals
from krogh.lab.figures import COLOURS, curve_with_spread, new_figure, reported, theory
from krogh.nn.prompt_transformer import PromptTransformer
from krogh.probes.basic import outputs_on
from krogh.probes.prompts import attention_mass, errors, neuron_alignment, pattern_projections
from krogh.probes.trained import over_networks
from krogh.systems.icl_nonlinear_transformer import system
from krogh.systems.icl_nonlinear_transformer.models import Training, out_of_domain, prompts_of, training
from krogh.tasks.pattern_prompts import same_pattern
from krogh.tasks.prompts import prompt
from krogh.theory.prompt_classification import attention_elsewhere, initial_attention
from krogh.train import sweep

DOMAINS = {"in": "in domain", "out": "out of domain"}

# ------------------------------------------------------------------------------------------- Figure 6.1


@dataclass(frozen=True)
class Example(Training):
    """One prompt of l = 3 examples, two of them decisive; nu indices and kappa of examples and query."""

    irrelevant: tuple[int, int, int, int] = (4, 1, 2, 0)
    kappa: tuple[float, float, float, float] = (-0.3, 0.2, 0.4, 0.1)


@system.experiment(
    "fig-6.1",
    "The worked example: three examples, one with the query's pattern",
    presets={"smoke": Example(steps=60, seeds=2), "quick": Example(), "paper": Example(seeds=64)},
)
def worked_example(s: Example) -> xr.Dataset:
    task = prompts_of(s)
    patterns = task.relevant[jnp.array([0, 1, 2, 0])]
    x = s.beta * (patterns + jnp.array(s.kappa)[:, None] * task.irrelevant[jnp.array(s.irrelevant)])
    rows = prompt(x[:-1], jnp.array([1.0, -1.0, 1.0])[:, None] * task.label, x[-1])
    run = sweep(training(s))
    found = over_networks(run.networks, lambda n, key: {"weight": n.attention(rows)[0, :-1], "output": n(rows)})
    return xr.Dataset(
        {"weight": (("seed", "example"), found["weight"]), "output": ("seed", found["output"])},
        coords={"example": ["μ1 − 0.3 ν5, +q", "μ2 + 0.2 ν2, −q", "μ3 + 0.4 ν3, +q"]},
    )


@worked_example.figure
def plot_worked_example(ds: xr.Dataset):
    figure, ax = new_figure(size=(3.8, 2.3))
    spread = ds.weight.quantile([0.1, 0.5, 0.9], "seed").values
    ax.bar(ds.example.values, spread[1], yerr=[spread[1] - spread[0], spread[2] - spread[1]], color=COLOURS[0])
    reported(ax, 0.8, "illustrated: 0.8 on the first")
    ax.set(ylabel="attention of the query μ1 + 0.1 ν1", ylim=(0, 1))
    ax.tick_params(axis="x", labelsize=6)
    ax.set_title(f"F = {float(ds.output.median()):.2f} (median); right if positive")
    ax.legend()
    return figure


# ------------------------------------------------------------------------------------------- Figure 6.2


@dataclass(frozen=True)
class Mechanism(Training):
    test_K: float = 5.0
    every: int = 10
    prompts: int = 512


@dataclass(frozen=True)
class PromptMechanism:
    """Attention, projections and neurons at a record, on fresh prompts of the replica's unseen tasks and out of
    domain."""

    K: float
    size: int
    dims = {"attention": ("domain",), "gap": ("domain",)} | {
        name: ("neuron",) for name in ("norm", "feature_norm", "label_norm", "feature_cosine", "label_cosine", "sign")
    }
    name = "mechanism"

    def __call__(self, network, task, key):
        tests = (task.unseen, out_of_domain(task, K=self.K))
        batches = [test.sample(key, self.size) for test in tests]
        narrow = replace(tests[1], K=task.K)
        along = pattern_projections(network, narrow, narrow.sample(key, self.size))
        return (
            {
                "attention": jnp.stack([attention_mass(network, batch)[0] for batch in batches]),
                "gap": jnp.stack([_score_gap(network, test) for test in tests]),
            }
            | pattern_projections(network, tests[1], batches[1])
            | {f"{name}_narrow": value for name, value in along.items()}
            | neuron_alignment(network, task)
            | {"sign": jnp.sign(network.output.value)}
        )


def _score_gap(network, task):
    """Mean score of a pattern with itself minus that with another one, without irrelevant parts."""
    rows = task.beta * task.relevant
    d = task.features
    scores = (rows @ network.query[:d, 0]) @ (rows @ network.key[:d, 0]).T
    count = len(rows)
    own = jnp.trace(scores) / count
    return own - (jnp.sum(scores) - count * own) / (count * (count - 1))


@system.experiment(
    "fig-6.2",
    "Attention, projections and neurons during training",
    presets={
        "smoke": Mechanism(steps=60, prompts=128, seeds=2),
        "quick": Mechanism(),
        "paper": Mechanism(prompts=4096, seeds=64),
    },
)
def mechanism(s: Mechanism) -> xr.Dataset:
    probe = PromptMechanism(s.test_K, s.prompts)
    data = sweep(training(s, probes=(probe,), every=s.every, networks=False)).data
    start = [initial_attention(s.length, s.alpha, s.delta, s.beta, K, s.M2) for K in (s.K, s.test_K)]
    return (
        data.drop_vars(["status", "reached"])
        .assign(initial=("domain", start))
        .assign_coords(domain=["in", "out"])
        .assign_attrs(alpha=s.alpha)
    )


@mechanism.claim(
    "22.7",
    "Attention on the query's pattern ends >= 0.95 in domain and >= 0.8 out of domain; it starts within 0.02 of the "
    "closed form",
    source="Cor 6.4.3, (E.71)",
    presets=("quick", "paper"),
)
def attention_concentrates(ds: xr.Dataset):
    end = ds.attention.isel(step=-1)
    parts = {
        domain: at_least(end.sel(domain=domain), bound, over="seed") for domain, bound in (("in", 0.95), ("out", 0.8))
    }
    start = ds.attention.isel(step=0).mean("seed")
    return all_of(**parts, initial=equals(start.values, ds.initial.values, 0.02))


@mechanism.claim(
    "22.8",
    "Out of domain at K' = 5 the projection of W_Q p_query on its pattern grows at least twofold to >= 0.8, and its "
    "ratio to the norm of W_Q p_query rises to >= 0.6",
    source="Prop 6.4.1, Fig 6.2a",
    presets=("quick", "paper"),
    finding="At K' = 0.5 the ratio falls instead, from 0.96 to 0.79.",
)
def projection_grows(ds: xr.Dataset):
    along, ratio = ds.query_along, ds.query_along / ds.query_norm
    first, last = ratio.isel(step=0), ratio.isel(step=-1)
    return all_of(
        growth=at_least(along.isel(step=-1) / along.isel(step=0), 2.0, over="seed"),
        projection=at_least(along.isel(step=-1), 0.8, over="seed"),
        rises=at_least(last - first, 0.0, over="seed"),
        ratio=at_least(last, 0.6, over="seed"),
    )


@mechanism.claim(
    "22.9",
    "Among the larger half of the neurons the mean cosine of the feature part with the mean pattern and of the label "
    "part with sign(a_i) q are both >= 0.97",
    source="Prop 6.4.5",
    presets=("quick", "paper"),
)
def neurons_align(ds: xr.Dataset):
    end = ds.isel(step=-1)
    large = end.norm >= end.norm.median("neuron")
    return all_of(
        **{
            part: at_least(end[f"{part}_cosine"].where(large).mean("neuron"), 0.97, over="seed")
            for part in ("feature", "label")
        }
    )


@mechanism.claim(
    "22.10",
    "m = 100: the 10th percentile of the neurons' norms is <= 0.25 times the 75th, and >= 30 % of the norms exceed 1",
    source="(6.14), (E.105), (E.106)",
    presets=("quick", "paper"),
)
def norm_gap(ds: xr.Dataset):
    end = ds.norm.isel(step=-1)
    low, high = (end.quantile(q, "neuron", method="inverted_cdf") for q in (0.1, 0.75))
    return all_of(
        gap=at_most(low / high, 0.25, over="seed"), large=at_least((end > 1).mean("neuron"), 0.3, over="seed")
    )


@mechanism.figure
def plot_attention(ds: xr.Dataset):
    figure, (left, right) = new_figure(2, size=(6.8, 2.6))
    for i, (name, label) in enumerate((("query", "$W_Q p_{query}$"), ("key", "$W_K p_i$"))):
        curve_with_spread(left, ds[f"{name}_norm"], label=f"norm of {label}", color=COLOURS[i], linestyle=":")
        curve_with_spread(left, ds[f"{name}_along"], label=f"{label} along its pattern", color=COLOURS[i])
        curve_with_spread(
            left,
            ds[f"{name}_along_narrow"] / ds[f"{name}_norm_narrow"],
            color=COLOURS[i + 2],
            label=f"share, {label}, K' = 0.5",
        )
    left.set(xlabel="step t", ylabel="mean over prompts", title="a: reported: projection close to the norm, both grow")
    left.legend(fontsize=5)
    for i, domain in enumerate(ds.domain.values):
        mass = ds.attention.sel(domain=domain)
        curve_with_spread(right, mass, label=f"same pattern, {DOMAINS[domain]}", color=COLOURS[i])
        curve_with_spread(right, 1 - mass, label="others", color=COLOURS[i], linestyle=":")
        right.plot(0, float(ds.initial.sel(domain=domain)), "k_", markersize=9)
    gap = ds.gap.sel(domain="in").median("seed")
    theory(right, ds.step, attention_elsewhere(ds.attrs["alpha"], gap)[0], "others, from the gap of the scores")
    right.set(xlabel="step t", ylabel="attention", ylim=(0, 1), title="b (bars: closed form at t = 0)")
    right.legend(fontsize=5)
    return figure


@mechanism.figure
def plot_neurons(ds: xr.Dataset):
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_figure(2, size=(6.8, 3.2), subplot_kw={"projection": "polar"})
    one = ds.isel(seed=0)
    positive, negative = (np.flatnonzero(one.sign.isel(step=0) == sign)[:5] for sign in (1, -1))
    for ax, part, chosen in ((axes[0], "feature", positive), (axes[1], "label", np.concatenate([positive, negative]))):
        for neuron in chosen:
            cosine = one[f"{part}_cosine"].isel(neuron=neuron)
            angle = np.arccos(np.clip(cosine * (one.sign.isel(neuron=neuron) if part == "label" else 1), -1, 1))
            size = one[f"{part}_norm"].isel(neuron=neuron)
            ax.plot(angle, size, color="0.8", linewidth=0.5)
            ax.scatter(angle, size, c=ds.step, s=6, cmap="viridis")
        ax.set(thetamin=0, thetamax=180)
        ax.set_rticks(MaxNLocator(3).tick_values(0, ax.get_rmax()))
    axes[0].set_title("c: features of 5 neurons, angle to the mean pattern", fontsize=7)
    axes[1].set_title("d: labels of 10 neurons, angle to q (5 with $a_i$ > 0, 5 with < 0)", fontsize=7)
    scale = ScalarMappable(Normalize(0, float(ds.step[-1])), "viridis")
    figure.colorbar(scale, ax=list(axes), label="step t", shrink=0.7)
    return figure


@mechanism.figure
def plot_norms(ds: xr.Dataset):
    figure, (left, right) = new_figure(2, size=(6.4, 2.5))
    end = ds.isel(step=-1)
    ranked = end.norm.copy(data=np.sort(end.norm.transpose("seed", "neuron").values, axis=1)[:, ::-1])
    curve_with_spread(left, ranked.assign_coords(neuron=np.arange(ranked.sizes["neuron"])), x="neuron")
    reported(left, 1 / 3, "1/β and $M_2^{-1/2}$")
    reported(left, 24**-0.5, None)
    left.set(xlabel="neuron by rank", ylabel="$\\|r_i\\|$", title="two levels of norms")
    left.legend()
    for i, part in enumerate(("feature", "label")):
        right.plot(
            end.norm.values.ravel(),
            end[f"{part}_cosine"].values.ravel(),
            ".",
            markersize=1.5,
            color=COLOURS[i],
            label=f"{part} part",
        )
    reported(right, 0.97, "bound of claim 22.9")
    right.set(xlabel="$\\|r_i\\|$", ylabel="cosine with its direction")
    right.legend()
    return figure


# ------------------------------------------------------------------------------------------- several heads


@dataclass(frozen=True)
class Heads(Training):
    heads: int = 2


@system.experiment(
    "heads-E.2.2",
    "Two heads that start alike",
    presets={
        "smoke": Heads(steps=60, prompts=256, seeds=2),
        "quick": Heads(),
        "paper": Heads(prompts=16_384, seeds=64),
    },
)
def several_heads(s: Heads) -> xr.Dataset:
    task = prompts_of(s)
    run = sweep(training(s))

    def measure(network, key):
        batch, new = task.unseen.sample(key, s.prompts), out_of_domain(task).sample(key, s.prompts)
        found = errors(outputs_on(network, batch.x), batch.y)
        return found | {"in": attention_mass(network, batch), "out": attention_mass(network, new)}

    found = over_networks(run.networks, measure)
    mass = np.stack([found["in"], found["out"]])
    return xr.Dataset(
        {
            "error": ("seed", found["error"]),
            "hinge": ("seed", found["hinge"]),
            "attention": (("domain", "seed", "head"), mass),
        },
        coords={"domain": ["in", "out"]},
    )


@several_heads.claim(
    "22.22",
    "Two summed heads with identical initialisation: error <= 0.01 and hinge <= 0.05 on unseen tasks, and each head's "
    "attention on the query's pattern >= 0.95 in domain and >= 0.8 out of domain",
    source="§E.2.2",
    presets=("quick", "paper"),
    finding="The heads stay equal and share the work: the hinge loss stops them earlier than one head alone, whose "
    "attention is that of claim 22.7. In the scaled run each of the two ends at 0.948 in domain and 0.740 out of "
    "domain; with four heads each ends at 0.902 and 0.678.",
)
def heads_agree(ds: xr.Dataset):
    parts = {}
    for head in range(ds.sizes["head"]):
        for domain, bound in (("in", 0.95), ("out", 0.8)):
            mass = ds.attention.sel(domain=domain).isel(head=head)
            parts[f"head_{head}_{domain}"] = at_least(mass, bound, over="seed")
    return all_of(error=at_most(ds.error, 0.01, over="seed"), hinge=at_most(ds.hinge, 0.05, over="seed"), **parts)


@several_heads.figure
def plot_heads(ds: xr.Dataset):
    figure, ax = new_figure(size=(3.4, 2.4))
    for i, domain in enumerate(ds.domain.values):
        for head in range(ds.sizes["head"]):
            values = ds.attention.sel(domain=domain).isel(head=head)
            ax.plot(
                np.full(values.size, head + 0.12 * (2 * i - 1)),
                values,
                "o",
                color=COLOURS[i],
                alpha=0.6,
                label=DOMAINS[domain] if head == 0 else None,
            )
    for bound in (0.95, 0.8):
        reported(ax, bound, None)
    ax.set(xlabel="head", ylabel="attention on the query's pattern", ylim=(0.5, 1), xticks=range(ds.sizes["head"]))
    ax.set_title(f"error {float(ds.error.mean()):.4f}, hinge {float(ds.hinge.mean()):.4f}")
    ax.legend()
    return figure


# ------------------------------------------------------------------------------------------- several patterns a class


@dataclass(frozen=True)
class Classes(Training):
    """A pattern is in half as many examples as in the document, hence more steps."""

    M1: int = 8
    per_class: int = 2
    steps: int = 1000


@system.experiment(
    "patterns-E.2.3",
    "Two patterns in either class",
    presets={
        "smoke": Classes(steps=60, prompts=256, seeds=2),
        "quick": Classes(),
        "paper": Classes(prompts=16_384, seeds=64),
    },
)
def several_patterns(s: Classes) -> xr.Dataset:
    task = prompts_of(s, per_class=s.per_class)
    run = sweep(training(s, task))

    def measure(network, key):
        batch = task.unseen.sample(key, s.prompts)
        weights = jax.vmap(network.attention)(batch.x)[:, 0, :-1]
        own = same_pattern(batch)
        alike = (batch.latents or {})["sign"] == batch.y[:, None]
        wrong, there = outputs_on(network, batch.x) * batch.y < 0, jnp.any(own, axis=1)

        def attention_on(examples):
            return jnp.mean(jnp.sum(weights * examples, axis=1), where=there)

        return {
            "error": jnp.mean(wrong, where=there),
            "absent": 1 - jnp.mean(there),
            "pattern": attention_on(own),
            "class": attention_on(alike & ~own),
        }

    found = over_networks(run.networks, measure)
    return xr.Dataset({name: ("seed", values) for name, values in found.items()})


@several_patterns.claim(
    "22.E2.3",
    "Two patterns in either class, unseen tasks, prompts with an example of the query's pattern: error <= 0.01 and "
    "attention on these examples >= 0.95",
    source="§E.2.3; the bounds are those of one pattern (22.22)",
    presets=("quick", "paper"),
)
def the_same_mechanism(ds: xr.Dataset):
    return all_of(
        error=at_most(ds.error, 0.01, over="seed"),
        attention=at_least(ds.pattern, 0.95, over="seed"),
    )


@several_patterns.figure
def plot_patterns(ds: xr.Dataset):
    figure, ax = new_figure(size=(3.4, 2.4))
    drawn = {"pattern": "the query's pattern", "class": "others of its label"}
    for i, name in enumerate(drawn):
        ax.plot(np.full(ds.seed.size, i), ds[name], "o", color=COLOURS[i], alpha=0.6)
    reported(ax, 0.95, "bound of claim 22.E2.3")
    ax.set_xticks(range(len(drawn)), drawn.values())
    told = f"error {float(ds.error.mean()):.2%}; {float(ds.absent.mean()):.1%} of prompts lack the pattern"
    ax.set(xlim=(-0.5, 1.5), ylim=(-0.03, 1.05), ylabel="attention", title=told)
    ax.legend(loc="center right")
    return figure


# ------------------------------------------------------------------------------------------- two printed forms


@dataclass(frozen=True)
class Printed(Training):
    """Exponents of the output weights a = ±m^(−power): 1 in §6.2.3, 1/2 in Subroutine 2."""

    powers: tuple[float, ...] = (1.0, 0.5)


@system.experiment(
    "printed-forms",
    "Two printed output weights, two printed softmaxes",
    presets={
        "smoke": Printed(steps=60, prompts=256, seeds=2),
        "quick": Printed(),
        "paper": Printed(prompts=16_384, seeds=64),
    },
)
def printed_forms(s: Printed) -> xr.Dataset:
    task = prompts_of(s)

    def measure(network, key):
        batch = task.unseen.sample(key, s.prompts)
        found = neuron_alignment(network, task)
        large = found["norm"] >= jnp.median(found["norm"])
        cosines = {part: jnp.mean(found[part], where=large) for part in ("feature_cosine", "label_cosine")}
        return (
            errors(outputs_on(network, batch.x), batch.y) | {"attention": attention_mass(network, batch)[0]} | cosines
        )

    parts = []
    for itself in (False, True):
        run = sweep(training(s, network=PromptTransformer(s.width, s.heads, itself, s.delta)), output_power=s.powers)
        found = over_networks(run.networks, measure)
        shape = (len(s.powers), s.seeds)
        parts.append(xr.Dataset({name: (("power", "seed"), value.reshape(shape)) for name, value in found.items()}))
    return xr.concat(parts, "softmax").assign_coords(power=list(s.powers), softmax=["over l", "over l + 1"])


@printed_forms.claim(
    "22.9-printed",
    "With the output weights ±1/sqrt(m) of Subroutine 2 and the same step, the larger half of the neurons have mean "
    "cosines >= 0.97 with the mean pattern and with sign(a_i) q",
    source="§E.3 Subroutine 2, Prop 6.4.5",
    presets=("quick", "paper"),
    finding="The hinge loss reaches zero before the neurons have turned; with the ±1/m of §6.2.3 they do turn (claim "
    "22.9).",
)
def root_output_weights(ds: xr.Dataset):
    end = ds.sel(power=0.5, softmax="over l")
    return all_of(**{part: at_least(end[f"{part}_cosine"], 0.97, over="seed") for part in ("feature", "label")})


@printed_forms.claim(
    "22.7-printed",
    "With the softmax over l + 1 rows as in the proofs, the query's own row included, attention on examples with the "
    "query's pattern ends >= 0.95 in domain",
    source="Definition E.4.8, Cor 6.4.3",
    presets=("quick", "paper"),
    finding="The query's own row has its pattern too and takes its part; over the l rows of (6.2) claim 22.7 holds.",
)
def softmax_with_query(ds: xr.Dataset):
    return at_least(ds.attention.sel(power=1.0, softmax="over l + 1"), 0.95, over="seed")


@printed_forms.figure
def plot_printed_forms(ds: xr.Dataset):
    names = ("feature_cosine", "label_cosine", "attention", "hinge", "error")
    figure, ax = new_figure(size=(4.6, 2.5))
    for i, softmax in enumerate(ds.softmax.values):
        for j, power in enumerate(ds.power.values):
            cell = ds.sel(softmax=softmax, power=power)
            places = np.arange(len(names)) + 0.18 * (2 * i + j - 1.5)
            means = [float(cell[name].mean()) for name in names]
            spread = [float(cell[name].std()) for name in names]
            ax.bar(places, means, 0.17, yerr=spread, color=COLOURS[2 * i + j], label=f"a = ±m^-{power:g}, {softmax}")
    reported(ax, 0.97, None)
    ax.set_xticks(np.arange(len(names)), ["cos, feature", "cos, label", "attention", "hinge", "error"])
    ax.legend(fontsize=5)
    return figure
