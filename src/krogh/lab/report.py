"""The report: a static web site with a page per system, made from the store and the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path
from typing import Any

from krogh.lab import figures, ledger
from krogh.lab.claims import Verdict
from krogh.lab.store import Result, Store, command, whole
from krogh.lab.system import Claim, Experiment, System

SHOWN = ("quick", "paper")
CSS = Path(__file__).with_name("report.css")


def build(found: Iterable[System], store: Store, folder: Path, tell: Callable[[str], None] = print) -> Path:
    """Write the site; returns the path of its first page."""
    entries = []
    for system in found:
        tell(f"{system.slug}")
        rows = {_identity(row): row for row in ledger.rows(system.slug)}
        results = {}
        for experiment in system.experiments.values():
            for preset in SHOWN:
                result = store.stored(experiment, preset)
                if result is None:
                    continue
                results[experiment.id] = preset, result
                judged = (
                    judge(experiment, claim, preset, result) for claim in experiment.claims if preset in claim.presets
                )
                rows |= {_identity(row): row for row in judged}
        _write(folder / f"{system.slug}.html", _system_page(system, results, list(rows.values()), folder))
        entries.append((system, list(rows.values())))
    _write(folder / "style.css", CSS.read_text())
    _write(folder / "index.html", _index_page(entries))
    return folder / "index.html"


def judge(experiment: Experiment, claim: Claim, preset: str, result: Result) -> ledger.Row:
    """The verdict on a stored result as a ledger row; a predicate that breaks leaves its claim undecided."""
    try:
        verdict = claim.judge(result.dataset)
    except Exception as error:
        why = f"could not be judged: {type(error).__name__}: {error}"
        verdict = Verdict("undecided", None, "", n=0, detail=why)
    return ledger.row(experiment, claim, preset, verdict, result.manifest)


def _identity(row: ledger.Row) -> tuple[Any, ...]:
    return row["experiment"], row["claim"], row["preset"], row["device_kind"]


def _write(path: Path, text: str) -> None:
    with whole(path) as temporary:
        temporary.write_text(text)


def _page(title: str, body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)}</title><link rel="stylesheet" href="style.css"></head>\n'
        f"<body>{body}</body></html>\n"
    )


def _table(head: list[str], rows: list[list[str]], numbers: tuple[int, ...] = ()) -> str:
    """A table of cells that are already HTML; the columns in `numbers` are aligned right."""

    def line(cells: list[str], tag: str) -> str:
        marks = (' class="n"' if i in numbers else "" for i in range(len(cells)))
        return "<tr>" + "".join(f"<{tag}{m}>{c}</{tag}>" for m, c in zip(marks, cells, strict=True)) + "</tr>"

    body = "\n".join(line(row, "td") for row in rows)
    return f'<div class="scroll"><table><thead>{line(head, "th")}</thead><tbody>{body}</tbody></table></div>'


def _index_page(entries: list[tuple[System, list[ledger.Row]]]) -> str:
    table = []
    for system, rows in entries:
        cells = [str(system.number), f'<a href="{system.slug}.html">{escape(system.title)}</a>']
        cells.append(f'{escape(system.question)}<br><span class="soft">{escape(system.source)}</span>')
        for preset in SHOWN:
            pairs = [(e.id, c.id) for e, c in system.claims if preset in c.presets and preset in e.available]
            counted = ledger.counts([row for row in rows if row["preset"] == preset], pairs)
            told = [_badge(name, f"{n} {name}") for name, n in counted.items() if n]
            cells.append("<br>".join(told) or '<span class="soft">none</span>')
        table.append(cells)
    head = ["", "system", "question", *(f"claims at {preset}" for preset in SHOWN)]
    intro = (
        '<h1>Krogh</h1><p class="question">Model systems of deep learning: every figure made again, '
        "every published statement judged.</p>"
    )
    return _page("Krogh", intro + _table(head, table))


def _system_page(system: System, results: dict[str, tuple[str, Result]], rows: list[ledger.Row], folder: Path) -> str:
    body = (
        f'<p class="soft"><a href="index.html">Krogh</a> · system {system.number}</p>'
        f"<h1>{escape(system.title)}</h1>"
        f'<p class="question">{escape(system.question)}</p>'
        f"<dl><dt>source</dt><dd>{escape(system.source)}</dd><dt>knobs</dt><dd>{escape(system.knobs)}</dd></dl>"
        f"<p><code>krogh verify {system.slug}</code></p>"
    )
    for experiment in system.experiments.values():
        here = [row for row in rows if row["experiment"] == experiment.id]
        body += _experiment_section(experiment, results.get(experiment.id), here, folder)
    return _page(f"{system.title} · Krogh", body)


def _experiment_section(
    experiment: Experiment, found: tuple[str, Result] | None, rows: list[ledger.Row], folder: Path
) -> str:
    text = f'<section id="{escape(experiment.id)}"><h2>{escape(experiment.title)}</h2>'
    text += f'<p class="soft">{escape(experiment.id)}'
    text += f" · stand-in: {escape(experiment.stand_in)}</p>" if experiment.stand_in else "</p>"
    if experiment.function.__doc__:
        text += f"<p>{escape(' '.join(experiment.function.__doc__.split()))}</p>"
    if found is None:
        again = command(experiment, "quick" if "quick" in experiment.available else "paper")
        text += f'<p><span class="badge not-yet">not run yet</span> <code>{escape(again)}</code></p>'
    else:
        preset, result = found
        for number, plot in enumerate(experiment.figures, 1):
            text += _figure(experiment, plot, number, result, folder)
        made = result.manifest
        about = f"{preset}, {made['seconds']:g} s on {made['device']['name']}, {made['date'][:10]}"
        settings = ", ".join(f"{name}={value}" for name, value in made["settings"].items())
        text += f'<p class="soft">{escape(about)}<br><code>{escape(command(experiment, preset))}</code></p>'
        text += f"<details><summary>settings</summary>{escape(settings)}</details>"
    table = [line for claim in experiment.claims for line in _claim_lines(claim, rows)]
    head = ["claim", "statement", "preset", "verdict", "measured", "bound", "95% interval", "n"]
    return text + (_table(head, table, numbers=(4, 6, 7)) if table else "") + "</section>"


def _figure(experiment: Experiment, plot: Callable[..., Any], number: int, result: Result, folder: Path) -> str:
    stem = folder / "figures" / f"{experiment.system.slug}_{experiment.id}_{number}"
    try:
        png, pdf = figures.save(figures.draw(plot, result.dataset), stem)
    except Exception as error:
        return f'<p class="soft">The figure could not be drawn: {escape(f"{type(error).__name__}: {error}")}</p>'
    name = escape(f"{experiment.title}, figure {number}")
    return f'<figure><a href="figures/{pdf.name}"><img src="figures/{png.name}" alt="{name}"></a></figure>'


def _claim_lines(claim: Claim, rows: list[ledger.Row]) -> list[list[str]]:
    """One line per preset and kind of device on which the claim has been judged."""
    statement = escape(claim.statement)
    statement += f'<br><span class="soft">{escape(claim.source)}</span>' if claim.source else ""
    statement += f'<br><span class="soft">Finding: {escape(claim.finding)}</span>' if claim.finding else ""
    mine = [row for row in rows if row["claim"] == claim.id]
    if not mine:
        return [[escape(claim.id), statement, escape(", ".join(claim.presets)), _badge("not yet"), "", "", "", ""]]
    lines = []
    for row in sorted(mine, key=lambda row: (SHOWN.index(row["preset"]), row["device_kind"])):
        badge = _badge(row["verdict"], row["verdict"] + (" (stand-in)" if row.get("stand_in") else ""))
        badge += f'<br><span class="soft">{escape(row["detail"])}</span>' if row.get("detail") else ""
        badge += _parts(row.get("parts") or {})
        where = escape(f"{row['preset']}, {row['device_kind']}")
        numbers = map(escape, (number(row["measured"]), row["bound"], span(row["interval"]), str(row["n"])))
        first = not lines
        lines.append([escape(claim.id) if first else "", statement if first else "", where, badge, *numbers])
    return lines


def _parts(parts: dict[str, ledger.Row]) -> str:
    if not parts:
        return ""
    told = [f"{name}: {part['verdict']}, {number(part['measured'])} ({part['bound']})" for name, part in parts.items()]
    return f"<details><summary>parts</summary>{'<br>'.join(map(escape, told))}</details>"


def _badge(outcome: str, text: str | None = None) -> str:
    return f'<span class="badge {outcome.replace(" ", "-")}">{escape(text or outcome)}</span>'


def number(value: Any) -> str:
    """A measured value in at most four digits."""
    return f"{value:.4g}" if isinstance(value, (int, float)) else "" if value is None else str(value)


def span(interval: Any) -> str:
    return f"{number(interval[0])} – {number(interval[1])}" if interval else ""
