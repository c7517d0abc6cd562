"""The published LongBench tables as data: their arithmetic and their order (000 Tables 9.1, 9.2, G.1)."""

from dataclasses import dataclass

import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, at_most, equals, every
from krogh.lab.figures import COLOURS, new_figure
from krogh.systems.gemfilter import system
from krogh.theory.gemfilter import SHAPES, needle_score

TASKS = (
    "NrtvQA",
    "Qasper",
    "MF-en",
    "HotpotQA",
    "2WikiMQA",
    "Musique",
    "GovReport",
    "QMSum",
    "MultiNews",
    "TREC",
    "TriviaQA",
    "SAMSum",
    "PCount",
    "PRe",
)

# Scores by task and, last, the printed average. No chat template.
LONGBENCH = {
    ("LLaMA 3.1 8B", "All KV"): (
        32.02,
        13.04,
        27.34,
        16.23,
        16.05,
        11.22,
        34.52,
        23.41,
        26.89,
        73.0,
        91.64,
        43.8,
        7.16,
        97.73,
        36.72,
    ),
    ("LLaMA 3.1 8B", "H2O-4096"): (
        22.94,
        12.61,
        26.48,
        16.63,
        15.81,
        10.14,
        33.51,
        23.47,
        26.81,
        69.0,
        91.15,
        43.97,
        6.66,
        71.67,
        33.63,
    ),
    ("LLaMA 3.1 8B", "MInference"): (
        27.52,
        14.72,
        28.89,
        17.55,
        15.22,
        10.58,
        34.76,
        22.34,
        26.64,
        72.5,
        89.78,
        41.94,
        7.59,
        92.91,
        35.92,
    ),
    ("LLaMA 3.1 8B", "LLMLingua-1024"): (
        11.73,
        6.28,
        12.43,
        13.82,
        12.92,
        8.15,
        22.82,
        20.18,
        23.32,
        24.0,
        66.75,
        24.02,
        9.09,
        4.24,
        18.55,
    ),
    ("LLaMA 3.1 8B", "SnapKV-1024"): (
        31.98,
        11.17,
        25.33,
        14.81,
        15.73,
        10.69,
        26.95,
        22.89,
        25.86,
        67.5,
        91.89,
        42.85,
        7.67,
        98.16,
        35.25,
    ),
    ("LLaMA 3.1 8B", "GemFilter-1024"): (
        20.71,
        11.0,
        29.28,
        19.12,
        17.01,
        13.01,
        30.37,
        21.75,
        25.17,
        63.0,
        90.7,
        42.5,
        7.15,
        92.22,
        34.50,
    ),
    ("LLaMA 3.1 8B", "SnapKV-2048"): (
        31.45,
        11.94,
        26.24,
        15.73,
        16.03,
        11.66,
        29.64,
        23.24,
        26.44,
        69.5,
        91.48,
        42.68,
        7.21,
        98.03,
        35.80,
    ),
    ("LLaMA 3.1 8B", "GemFilter-2048"): (
        24.36,
        12.63,
        25.39,
        19.58,
        17.03,
        14.11,
        33.15,
        22.31,
        26.49,
        69.5,
        91.59,
        42.64,
        4.61,
        98.75,
        35.87,
    ),
    ("LLaMA 3.1 8B", "SnapKV-4096"): (
        32.13,
        13.12,
        27.38,
        16.11,
        16.08,
        11.6,
        32.39,
        23.47,
        26.76,
        71.5,
        91.64,
        43.46,
        7.33,
        97.24,
        36.44,
    ),
    ("LLaMA 3.1 8B", "GemFilter-4096"): (
        25.66,
        12.95,
        27.38,
        17.76,
        15.6,
        12.02,
        34.17,
        23.25,
        26.87,
        70.0,
        92.36,
        43.34,
        5.96,
        98.0,
        36.09,
    ),
    ("Mistral Nemo 12B", "All KV"): (
        28.91,
        40.74,
        54.65,
        52.15,
        48.36,
        30.28,
        30.66,
        23.53,
        26.31,
        75.0,
        89.66,
        44.32,
        4.5,
        100.0,
        46.36,
    ),
    ("Mistral Nemo 12B", "H2O-4096"): (
        31.61,
        39.52,
        54.75,
        47.83,
        48.09,
        27.0,
        30.44,
        23.21,
        26.42,
        72.5,
        89.76,
        44.47,
        3.0,
        73.0,
        43.69,
    ),
    ("Mistral Nemo 12B", "LLMLingua-1024"): (
        19.24,
        16.92,
        21.43,
        30.94,
        25.09,
        13.24,
        21.96,
        19.8,
        23.94,
        24.5,
        68.48,
        33.33,
        4.0,
        5.0,
        23.42,
    ),
    ("Mistral Nemo 12B", "SnapKV-1024"): (
        26.42,
        38.49,
        52.96,
        51.21,
        47.86,
        27.06,
        24.32,
        22.66,
        25.52,
        73.0,
        89.82,
        43.16,
        3.5,
        100.0,
        44.71,
    ),
    ("Mistral Nemo 12B", "GemFilter-1024"): (
        27.53,
        40.68,
        53.86,
        55.51,
        55.43,
        34.11,
        27.25,
        21.16,
        25.56,
        69.0,
        87.32,
        42.49,
        4.0,
        88.06,
        45.14,
    ),
    ("Mistral Nemo 12B", "SnapKV-2048"): (
        25.85,
        40.69,
        54.48,
        51.96,
        49.06,
        26.95,
        26.29,
        23.17,
        25.9,
        74.5,
        89.66,
        43.89,
        4.0,
        99.5,
        45.42,
    ),
    ("Mistral Nemo 12B", "GemFilter-2048"): (
        29.27,
        41.53,
        54.91,
        57.62,
        54.97,
        35.09,
        29.34,
        22.58,
        26.19,
        72.0,
        89.65,
        44.93,
        4.0,
        97.5,
        47.11,
    ),
    ("Mistral Nemo 12B", "SnapKV-4096"): (
        27.92,
        40.9,
        54.75,
        51.69,
        48.16,
        29.19,
        29.17,
        23.36,
        26.35,
        75.0,
        89.66,
        43.93,
        4.5,
        100.0,
        46.04,
    ),
    ("Mistral Nemo 12B", "GemFilter-4096"): (
        30.29,
        39.9,
        56.48,
        58.78,
        51.48,
        32.81,
        30.32,
        23.21,
        26.48,
        71.5,
        90.24,
        42.13,
        2.0,
        99.5,
        46.79,
    ),
    ("Phi 3.5 3.8B", "All KV"): (
        27.51,
        17.23,
        35.63,
        21.7,
        25.7,
        11.68,
        34.14,
        23.17,
        24.95,
        71.5,
        87.37,
        13.08,
        7.17,
        83.85,
        34.62,
    ),
    ("Phi 3.5 3.8B", "H2O-4096"): (
        19.74,
        16.23,
        34.17,
        21.02,
        23.05,
        10.49,
        33.42,
        21.95,
        24.95,
        67.5,
        86.13,
        16.71,
        1.55,
        47.46,
        30.31,
    ),
    ("Phi 3.5 3.8B", "LLMLingua-1024"): (
        8.58,
        6.74,
        14.93,
        12.37,
        11.01,
        4.48,
        21.23,
        17.08,
        20.75,
        24.0,
        56.09,
        23.01,
        0.96,
        3.79,
        16.07,
    ),
    ("Phi 3.5 3.8B", "SnapKV-1024"): (
        24.31,
        16.03,
        34.93,
        20.72,
        26.02,
        13.74,
        28.27,
        22.03,
        24.02,
        67.5,
        87.71,
        14.57,
        6.08,
        85.6,
        33.68,
    ),
    ("Phi 3.5 3.8B", "GemFilter-1024"): (
        16.57,
        18.29,
        35.91,
        24.22,
        26.1,
        9.7,
        30.29,
        18.96,
        23.64,
        64.5,
        85.85,
        23.02,
        0.2,
        81.12,
        32.74,
    ),
    ("Phi 3.5 3.8B", "SnapKV-2048"): (
        26.41,
        16.59,
        36.99,
        21.8,
        26.07,
        12.57,
        30.88,
        22.37,
        24.51,
        69.5,
        87.54,
        13.13,
        6.57,
        83.92,
        34.20,
    ),
    ("Phi 3.5 3.8B", "GemFilter-2048"): (
        19.63,
        14.84,
        35.99,
        21.38,
        19.72,
        10.13,
        32.39,
        21.24,
        24.71,
        65.0,
        86.49,
        20.47,
        2.17,
        69.5,
        31.69,
    ),
    ("Phi 3.5 3.8B", "SnapKV-4096"): (
        27.25,
        17.42,
        36.9,
        21.37,
        25.42,
        12.55,
        32.9,
        22.6,
        24.87,
        70.5,
        87.45,
        13.28,
        6.81,
        84.04,
        34.53,
    ),
    ("Phi 3.5 3.8B", "GemFilter-4096"): (
        20.95,
        19.98,
        35.22,
        28.82,
        28.21,
        13.98,
        34.2,
        22.45,
        25.08,
        64.5,
        85.86,
        18.68,
        3.43,
        65.56,
        33.35,
    ),
}

# LLaMA 3.1 8B, GemFilter-1024, by filter layer.
FILTER_LAYERS = {
    1: (16.32, 7.38, 13.86, 13.9, 13.21, 5.22, 25.61, 20.09, 24.51, 47.0, 76.59, 39.78, 2.55, 23.01, 23.50),
    7: (16.89, 6.83, 13.47, 13.78, 12.23, 9.67, 26.56, 19.49, 24.55, 58.0, 84.87, 41.07, 6.5, 50.69, 27.47),
    12: (15.53, 7.73, 16.53, 17.08, 13.33, 9.88, 28.94, 20.32, 25.01, 58.0, 88.16, 40.42, 8.36, 43.06, 28.03),
    13: (20.71, 11.0, 29.28, 19.12, 17.01, 13.01, 30.37, 21.75, 25.17, 63.0, 90.7, 42.5, 7.15, 92.22, 34.50),
    14: (21.14, 13.06, 25.45, 20.89, 17.32, 12.9, 29.85, 22.06, 24.91, 62.0, 89.88, 42.33, 6.17, 92.17, 34.30),
    19: (19.06, 11.69, 27.12, 20.98, 16.98, 14.04, 29.17, 21.88, 25.18, 58.0, 89.65, 40.4, 8.75, 94.84, 34.12),
    25: (24.74, 12.33, 26.18, 18.56, 16.3, 12.54, 28.66, 21.75, 25.14, 61.5, 88.78, 39.47, 8.67, 90.59, 33.94),
    31: (20.62, 9.13, 17.51, 19.13, 13.76, 10.07, 28.21, 21.11, 25.16, 58.0, 88.4, 42.37, 8.23, 58.8, 30.04),
}

# LLaMA 3.1 8B with its chat template, the six question-answering tasks.
CHAT = {
    "All KV": (25.08, 44.06, 55.08, 47.86, 49.19, 27.46, 41.46),
    "MInference": (29.61, 43.89, 54.76, 51.72, 49.55, 28.17, 42.95),
    "SnapKV-1024": (29.01, 41.67, 56.22, 56.81, 49.32, 31.56, 44.10),
    "GemFilter-1024": (22.8, 40.78, 48.05, 54.33, 50.03, 30.03, 41.00),
}


@dataclass(frozen=True)
class Quoted:
    prompt: int = 12_800


@system.experiment(
    "tables", "The published tables: averages, orders, compression, the scorer", presets={"quick": Quoted()}
)
def tables(s: Quoted) -> xr.Dataset:
    models = list(dict.fromkeys(model for model, _ in LONGBENCH))
    methods = list(dict.fromkeys(method for _, method in LONGBENCH))
    blank = [np.nan] * (len(TASKS) + 1)
    scores = np.array([[LONGBENCH.get((model, method), blank) for method in methods] for model in models])
    layers = np.array(list(FILTER_LAYERS.values()))
    chat = np.array(list(CHAT.values()))
    words = {"verbatim": "eat a sandwich and sit in Dolores Park on a sunny day.", "stop": "Eat a sandwich."}
    return xr.Dataset(
        {
            "score": (("model", "approach", "task"), scores[..., :-1]),
            "printed": (("model", "approach"), scores[..., -1]),
            "layer_score": (("layer", "task"), layers[:, :-1]),
            "layer_printed": (("layer",), layers[:, -1]),
            "chat_score": (("chat_method", "question_task"), chat[:, :-1]),
            "chat_printed": (("chat_method",), chat[:, -1]),
            "kept_share": (("keep",), [1024 / s.prompt, 4096 / s.prompt]),
            "compression": 108_172 / 100,
            "needle_score": (("answer",), [*map(needle_score, words.values()), needle_score("Eat a sandwich")]),
            "speed_up": (
                ("shape", "count"),
                [[m.layers / m.filter_layer, m.layers / (m.filter_layer + 1)] for m in SHAPES.values()],
            ),
        },
        coords={
            "model": models,
            "approach": methods,
            "task": list(TASKS),
            "layer": list(FILTER_LAYERS),
            "chat_method": list(CHAT),
            "question_task": list(TASKS[:6]),
            "keep": [1024, 4096],
            "answer": [*words, "no stop"],
            "shape": [m.name for m in SHAPES.values()],
            "count": ["m/r", "m/(r+1)"],
        },
    )


@tables.claim(
    "08.12b",
    "Table 9.2: filter layer 1 is >= 20 points below the best, layers 13 to 25 are within 2 points of it, and the best "
    "layer is below the last",
    source="Table 9.2",
    finding="the printed averages put layer 1 only 11.0 points (32 %) below the best; the rest is as stated",
)
def filter_layers(ds: xr.Dataset):
    best = ds.layer_printed.max()
    return all_of(
        first=at_least(float(best - ds.layer_printed.sel(layer=1)), 20),
        middle=at_most(float((best - ds.layer_printed.sel(layer=slice(13, 25))).max()), 2),
        below_last=at_most(float(ds.layer[int(np.argmax(ds.layer_printed.values))]), 30),
    )


@tables.claim(
    "08.19",
    "every printed average is the mean of its row to .06; GemFilter-4096 beats H2O-4096 on every model; GemFilter and "
    "SnapKV differ by <= 2.6 at equal k; GemFilter-1024 beats LLMLingua-1024 by >= 15 points",
    source="Tables 9.1, 9.2, G.1",
)
def arithmetic(ds: xr.Dataset):
    # not every method was run on every model
    present = ds.printed.notnull() | ds.score.notnull().any("task")
    off = abs(ds.score.mean("task", skipna=False) - ds.printed).where(present, 0.0)
    layers_off = abs(ds.layer_score.mean("task", skipna=False) - ds.layer_printed)
    chat_off = abs(ds.chat_score.mean("question_task", skipna=False) - ds.chat_printed)
    gaps = [
        ds.printed.sel(approach=f"GemFilter-{k}") - ds.printed.sel(approach=f"SnapKV-{k}") for k in (1024, 2048, 4096)
    ]
    lead = ds.printed.sel(approach="GemFilter-1024") - ds.printed.sel(approach="LLMLingua-1024")
    return all_of(
        averages=at_most(float(off.max(skipna=False)), 0.06),
        by_layer=at_most(float(layers_off.max(skipna=False)), 0.06),
        chat=at_most(float(chat_off.max(skipna=False)), 0.06),
        h2o=every(ds.printed.sel(approach="GemFilter-4096") > ds.printed.sel(approach="H2O-4096")),
        snapkv=at_most(float(np.abs(gaps).max()), 2.6),
        llmlingua=at_least(float(lead.min(skipna=False)), 15),
    )


@tables.claim(
    "08.20",
    "1024 and 4096 tokens are 8 % and 32 % of one mean prompt length, 12,800; 108,172 tokens to 100 is 1082 fold",
    source="§9.4.2, Fig 9.1",
)
def compression(ds: xr.Dataset):
    return all_of(
        share=equals(ds.kept_share.values, [0.08, 0.32], tol=0.005), fold=equals(float(ds.compression), 1082, tol=1)
    )


@tables.claim(
    "08.21",
    "the released scorer gives a verbatim answer 11/12, 'Eat a sandwich.' 2/12 and 'Eat a sandwich' 3/12",
    source="§9.4.1",
)
def scorer(ds: xr.Dataset):
    return equals(12 * ds.needle_score.values, [11, 2, 3], tol=1e-9)


@tables.claim(
    "08.T1",
    "a speed-up of 2.4x follows from the layers run for all three models, as the captions of Figs 9.3 and 9.6 print it",
    source="Figs 9.3, 9.6",
    finding="32/13 = 2.46 fits LLaMA alone; Nemo's 40/19 = 2.1 and Phi's 32/19 = 1.7 leave no room for 2.4",
)
def printed_speed_up(ds: xr.Dataset):
    found = ds.speed_up.sel(count="m/r")
    return all_of(**{str(name): equals(float(found.sel(shape=name)), 2.4, tol=0.1) for name in ds.shape.values})


@tables.figure
def tables_plot(ds: xr.Dataset):
    fig, (left, right) = new_figure(2, size=(7.4, 3.0), width_ratios=[2, 1])
    for model, colour in zip(ds.model.values, COLOURS, strict=False):
        left.plot(ds.approach, ds.printed.sel(model=model), "o", color=colour, label=str(model))
    left.tick_params(axis="x", rotation=60)
    left.set_ylabel("LongBench average (printed)")
    left.legend()
    right.plot(ds.layer, ds.layer_printed, "o-")
    right.set(xlabel="filter layer", title="LLaMA, GemFilter-1024 (Table 9.2)")
    return fig
