"""What fixed features and statistical queries cannot do, and the online-convex inequality (Thms 2.2, 2.4, A.21)."""

import math
from dataclasses import dataclass
from itertools import combinations

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, at_most, equals
from krogh.nn.truncated import PairedTruncated
from krogh.probes.basic import accuracy
from krogh.systems.pattern_dictionary import system
from krogh.systems.pattern_dictionary.recipe import Setting, method, train_accuracy
from krogh.tasks.base import Batch
from krogh.tasks.dictionary import ParityDictionary
from krogh.theory.boolean import cube
from krogh.theory.dictionary import (
    fixed_feature_bounds,
    fixed_feature_conditions,
    largest_useful_norm,
    online_convex,
    statistical_queries,
)
from krogh.theory.fixed_features import correlations
from krogh.train.learners import SGD, Adam, Stage
from krogh.train.sweep import train

# --- Theorem 2.2 ---


@dataclass(frozen=True)
class Fixed(Setting):
    population: int = 200_000
    enumerated_D: int = 14
    enumerated_k: int = 3
    enumerated_m: int = 300


@system.experiment(
    "thm-2.2",
    "Fixed features keep a hinge loss near p_o: the trained random-feature head against the printed, corrected and "
    "derived lower bounds",
    presets={
        "smoke": Fixed(D=40, m=40, n=4000, steps=60, batch=500, test=1000, population=10_000, enumerated_D=9, seeds=2),
        "quick": Fixed(seeds=3),
        "paper": Fixed(d=500),
    },
)
def fixed_features(s: Fixed) -> xr.Dataset:
    task = s.task()
    network, stages = method("random", s, task)
    run = train(task, network, stages, seeds=s.seeds, record=(s.steps,))
    rows = {name: [] for name in ("hinge", "norm", "correlation")}
    for seed in range(s.seeds):
        net = run.network(seed=seed)
        drawn = task.instance(jr.fold_in(jr.fold_in(jr.key(seed), 4), 0)) if s.d is None else None
        rows["norm"].append(float(jnp.linalg.norm(net.output)))
        mixture, uniform = (_population(s, net, seed, structure, drawn) for structure in (True, False))
        rows["hinge"].append(mixture[0])
        rows["correlation"].append(uniform[1])
    enumerated = _enumerate(s)
    bounds = [fixed_feature_bounds(0.5, 2 * s.m, B, s.D, s.k) for B in rows["norm"]]
    reach = largest_useful_norm(2 * s.m, s.D, s.k)
    return xr.Dataset(
        {name: ("seed", values) for name, values in rows.items()}
        | {name: ("seed", [getattr(b, name) for b in bounds]) for name in bounds[0]._fields},
        attrs={
            "rms_correlation": enumerated[0],
            "parseval": enumerated[1],
            "corrected_up_to": reach[0],
            "derived_up_to": reach[1],
            "conditions": "; ".join(map(str, fixed_feature_conditions(s.D, s.k))),
        },
    ).assign(measured_bound=("seed", 0.5 * (1 - np.array(rows["norm"]) * np.array(rows["correlation"]))))
