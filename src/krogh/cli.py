"""The command line: `krogh list`, run, verify, show, runs, compare, report, ledger, data, gemfilter and bench."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from krogh.errors import InputError, MissingExtra, check_choice, check_integer, nearest

if TYPE_CHECKING:
    from rich.table import Table

    from krogh.lab.store import Result, Store
    from krogh.lab.system import Claim, Experiment

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

Preset = Annotated[str, typer.Option(help="smoke (seconds), quick (minutes on two cores) or paper.")]
Changes = Annotated[list[str] | None, typer.Option("--set", help="Change a setting: key=value; repeatable.")]
Parts = Annotated[
    list[str] | None,
    typer.Option(
        "--part",
        help="Only train for some values of a setting that lists several, key=value; other processes may take the "
        "others, and the command without it puts them together.",
    ),
]
Seeds = Annotated[int | None, typer.Option(help="Number of seeds.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Compute again even if stored.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a script to read.")]
What = Annotated[str | None, typer.Argument(help="SYSTEM or SYSTEM/EXPERIMENT; nothing means all.")]
Run = Annotated[str, typer.Argument(help="SYSTEM/EXPERIMENT[@PRESET], or the beginning of a key.")]

# Also how the parser reports Ctrl-C.
INTERRUPTED = 130
COLOURS = {"holds": "green", "fails": "red", "undecided": "yellow"}


def say(text: str) -> None:
    """A line for the user, beside the output."""
    print(text, file=sys.stderr, flush=True)


def show_table(head: list[str], rows: list[list[str]], right: tuple[str, ...] = ()) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table: Table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in head:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    # in a pipe a line is as long as it needs to be
    console = Console() if sys.stdout.isatty() else Console(width=240)
    console.print(table)


def show_json(value: Any) -> None:
    print(json.dumps(strict(value), indent=1, ensure_ascii=False, default=str, allow_nan=False))


def strict(value: Any) -> Any:
    """A value in which numbers that JSON does not know, inf and nan, are words."""
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if hasattr(value, "item") and not hasattr(value, "__len__"):  # a NumPy number
        value = value.item()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def open_store() -> Store:
    from krogh.lab.store import Store

    return Store(say=lambda text: say(f"warning: {text}"))


@app.callback(invoke_without_command=True)
def krogh(context: typer.Context) -> None:
    """Krogh: model systems of deep learning, with every published statement as an executable claim."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("list")
def list_(what: What = None, as_json: Json = False) -> None:
    """Every system with its experiments and claims."""
    from rich.console import Console
    from rich.markup import escape

    from krogh.lab.system import find

    chosen = find(what)
    if as_json:
        show_json([_card(experiment) for experiment in chosen])
        return
    console = Console(highlight=False, soft_wrap=True)
    system = None
    for experiment in chosen:
        if experiment.system is not system:
            system = experiment.system
            console.print(f"\n[bold]{system.slug}[/]  {system.number:02d} · {escape(system.title)}")
            console.print(f"  {escape(system.question)} [dim]({escape(system.source)})[/]")
        stand_in = f" [dim](stand-in: {escape(experiment.stand_in)})[/]" if experiment.stand_in else ""
        console.print(f"  [cyan]{experiment.id}[/]  {escape(experiment.title)}{stand_in}")
        for claim in experiment.claims:
            needs = _needs(experiment, claim, "quick")
            console.print(f"    {claim.id}  {escape(claim.statement)}" + (f" [dim]({needs})[/]" if needs else ""))


def _card(experiment: Experiment) -> dict[str, Any]:
    claims = [
        {
            "claim": c.id,
            "statement": c.statement,
            "source": c.source,
            "presets": c.presets,
            "finding": c.finding,
        }
        for c in experiment.claims
    ]
    return {
        "system": experiment.system.slug,
        "number": experiment.system.number,
        "experiment": experiment.id,
        "title": experiment.title,
        "presets": experiment.available,
        "stand_in": experiment.stand_in,
        "claims": claims,
    }


def _needs(experiment: Experiment, claim: Claim | None, preset: str) -> str | None:
    """`needs paper` where a claim (or the experiment) is not for this preset."""
    allowed = [p for p in experiment.available if claim is None or p in claim.presets]
    return None if preset in allowed else f"needs {' or '.join(allowed) or 'another preset'}"


@app.command()
def run(
    what: Annotated[str, typer.Argument(help="SYSTEM/EXPERIMENT, or SYSTEM for all its experiments.")],
    preset: Preset = "quick",
    changes: Changes = None,
    seeds: Seeds = None,
    fresh: Fresh = False,
    parts: Parts = None,
    as_json: Json = False,
) -> None:
    """Run an experiment, or reuse its stored result."""
    chosen = _chosen(what, preset, changes, seeds)
    if parts:
        if len(chosen) > 1 or fresh:
            raise InputError("--part goes with one SYSTEM/EXPERIMENT and without --fresh.")
        (experiment,), asked = chosen, [*(changes or ()), *parts]
        with progress_bar(f"{experiment.name}, {', '.join(parts)}", as_json) as progress, _blamed_on(asked, experiment):
            kept = open_store().contribute(experiment, parts, preset, changes or (), seeds, progress)
        show_json({"path": str(kept)}) if as_json else print(kept)
        return
    results = [result for _, result in _results(chosen, preset, changes, seeds, fresh, quiet=as_json)]
    if as_json:
        show_json([result.manifest | {"path": str(result.path)} for result in results])
        return
    for result in results:
        print(f"{result.key[:8]}  {result.path}")


def _chosen(what: str | None, preset: str, changes: list[str] | None, seeds: int | None) -> list[Experiment]:
    """The experiments meant that have the preset, with every setting checked before anything is computed."""
    from krogh.lab.system import PRESETS, find

    check_choice("preset", preset, PRESETS)
    experiments = find(what)
    runnable = [e for e in experiments if preset in e.available] or experiments[:1]
    for experiment in runnable:
        experiment.settings(preset, changes or (), seeds)
    return experiments if what is None or "/" not in what else runnable


def _results(
    experiments: list[Experiment],
    preset: str,
    changes: list[str] | None,
    seeds: int | None,
    fresh: bool,
    quiet: bool,
) -> Iterator[tuple[Experiment, Result]]:
    """Each experiment's result, computed where it is not stored."""
    store = open_store()
    todo = [experiment for experiment in experiments if preset in experiment.available]
    for number, experiment in enumerate(todo, 1):
        title = f"{experiment.name} ({number}/{len(todo)})"
        try:
            with progress_bar(title, quiet) as progress, _blamed_on(changes, experiment):
                result = store.obtain(experiment, preset, changes or (), seeds, fresh, progress)
        except MissingExtra as error:
            if len(todo) == 1:
                raise
            say(f"left out: {error}")
            continue
        if not quiet:
            how = "stored" if result.reused else f"{result.manifest['seconds']:g} s"
            say(f"{experiment.name}: {how}")
        yield experiment, result


@contextmanager
def _blamed_on(changes: list[str] | None, experiment: Experiment) -> Iterator[None]:
    """What an experiment cannot run with is told in a sentence, where the user has changed something."""
    try:
        yield
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, InputError) or not changes:
            raise
        told = str(error).partition("\n")[0]
        raise InputError(f"{experiment.name} cannot run with {', '.join(changes)}: {told}.") from error


def _pace(rate: float) -> str:
    """Work outside the engine has no rate."""
    return f"{rate:.3g} replica-steps/s" if rate else ""


@contextmanager
def progress_bar(title: str, quiet: bool) -> Iterator[Callable[[str, float, float | None, float], None]]:
    """A bar on a terminal; elsewhere a plain line every ten seconds; nothing when quiet."""
    if quiet or not sys.stderr.isatty():
        said = time.monotonic()

        def line(label: str, done: float, total: float | None, rate: float) -> None:
            nonlocal said
            if not quiet and time.monotonic() - said > 10:
                said = time.monotonic()
                share = f"{done / total:.0%}" if total else f"{done:.3g} replica-steps"
                say(", ".join(filter(None, (f"{title}: {label} {share}", _pace(rate)))))

        yield line
        return

    from rich import progress as bars
    from rich.console import Console

    columns = (bars.SpinnerColumn(), bars.TextColumn("{task.description}"), bars.BarColumn(bar_width=24))
    columns += (bars.TaskProgressColumn(), bars.TextColumn("{task.fields[rate]}"))
    columns += (bars.TimeElapsedColumn(), bars.TimeRemainingColumn())
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=None, rate="")

        def update(label: str, done: float, total: float | None, rate: float) -> None:
            text = f"{title} {label}".strip()
            progress.update(task, description=text, completed=done, total=total, rate=_pace(rate))

        yield update


@app.command()
def verify(
    what: What = None,
    preset: Preset = "quick",
    changes: Changes = None,
    seeds: Seeds = None,
    fresh: Fresh = False,
    as_json: Json = False,
    no_record: Annotated[bool, typer.Option("--no-record", help="Leave the ledger as it is.")] = False,
) -> None:
    """Run what is not yet stored, judge every claim, record the verdicts; 0 if all hold, 1 if not."""
    from krogh.lab import ledger
    from krogh.lab.report import judge

    experiments = _chosen(what, preset, changes, seeds)
    judged = [e for e in experiments if any(not _needs(e, claim, preset) for claim in e.claims)]
    own = changes or seeds is not None or preset == "smoke"
    rows: list[dict[str, Any]] = []
    for experiment, result in _results(judged, preset, changes, seeds, fresh, quiet=as_json):
        claims = [claim for claim in experiment.claims if not _needs(experiment, claim, preset)]
        verdicts = [judge(experiment, claim, preset, result) for claim in claims]
        if not own and not no_record:
            known = {(e.id, claim.id, name) for e, claim in experiment.system.claims for name in claim.presets}
            ledger.record_rows(verdicts, known)
        rows += verdicts
    skipped = [
        (experiment, claim, needs)
        for experiment in experiments
        for claim in experiment.claims
        if (needs := _needs(experiment, claim, preset))
    ]
    if not as_json:
        _show_verdicts(rows, skipped)
    if own:
        why = "smoke only proves that it runs" if preset == "smoke" else "its settings are not the preset's"
        say(f"not recorded in the ledger: {why}.")
    if as_json:
        named = [(e.system.slug, e.id, c.id, c.statement, needs) for e, c, needs in skipped]
        keys = ("system", "experiment", "claim", "statement", "verdict")
        show_json(rows + [dict(zip(keys, values, strict=True)) | {"preset": preset} for values in named])
    if any(row["verdict"] != "holds" for row in rows):
        raise typer.Exit(1)


def _show_verdicts(rows: list[dict[str, Any]], skipped: list[tuple[Experiment, Claim, str]]) -> None:
    from rich.markup import escape

    from krogh.lab.report import number, span

    lines = []
    for row in rows:
        stand_in = " (stand-in)" if row["stand_in"] else ""
        verdict = f"[{COLOURS[row['verdict']]}]{row['verdict']}[/]{stand_in}"
        detail = f"\n[dim]{escape(row['detail'])}[/]" if row["detail"] else ""
        told = [escape(row["statement"]) + detail, verdict, number(row["measured"]), escape(row["bound"])]
        lines.append([row["claim"], row["experiment"], *told, span(row["interval"]), str(row["n"])])
    lines += [[c.id, e.id, escape(c.statement), f"[dim]{needs}[/]", "", "", "", ""] for e, c, needs in skipped]
    head = ["claim", "experiment", "statement", "verdict", "measured", "bound", "95% interval", "n"]
    show_table(head, sorted(lines, key=lambda line: line[0]), right=("measured", "n"))
    print(_counted([row["verdict"] for row in rows], len(skipped)))


def _counted(verdicts: list[str], skipped: int) -> str:
    counts = {name: verdicts.count(name) for name in ("holds", "fails", "undecided")}
    text = f"{counts['holds']} hold, {counts['fails']} fail, {counts['undecided']} undecided"
    return text + (f", {skipped} need another preset" if skipped else "")


@app.command()
def show(
    run: Run,
    figures: Annotated[Path | None, typer.Option(help="Also draw its figures into this folder.")] = None,
    as_json: Json = False,
) -> None:
    """One stored result: what made it, what is in it, what it says about its claims."""
    from krogh.lab.report import judge
    from krogh.lab.system import systems

    result = open_store().find(run)
    made = result.manifest
    system = systems().get(made["system"])
    experiment = system.experiments.get(made["experiment"]) if system else None
    rows: list[dict[str, Any]] = []
    if experiment:
        claims = [claim for claim in experiment.claims if made["preset"] in claim.presets]
        rows = [judge(experiment, claim, made["preset"], result) for claim in claims]
    if as_json:
        variables = {str(n): {"dims": v.dims, "shape": v.shape} for n, v in result.dataset.data_vars.items()}
        show_json(made | {"path": str(result.path), "variables": variables, "verdicts": rows})
    else:
        print(f"{made['system']}/{made['experiment']}  {result.key}\n{result.path}")
        print(f"{made['preset']}, {made['seconds']:g} s on {made['device']['name']}, {made['date']}")
        print(", ".join(f"{name}={value}" for name, value in made["settings"].items()))
        print(f"again: {made['command']} --fresh\n")
        print(result.dataset.drop_attrs())
        if rows:
            _show_verdicts(rows, [])
    if figures and experiment:
        from krogh.lab.figures import draw, save

        for i, plot in enumerate(experiment.figures, 1):
            paths = save(draw(plot, result.dataset), figures / f"{result.key[:8]}_{i}")
            say(f"drawn: {', '.join(map(str, paths))}")


@app.command()
def runs(as_json: Json = False) -> None:
    """All stored results, oldest first."""
    store = open_store()
    found = store.manifests()
    if as_json:
        show_json(found)
        return
    lines = []
    for made in found:
        changed = " ".join([made["preset"], *made["changes"]])
        name = f"{made['system']}/{made['experiment']}"
        lines.append([made["key"][:8], name, changed, made["date"], f"{made['seconds']:g}", made["device"]["name"]])
    show_table(["key", "experiment", "preset", "date", "seconds", "device"], lines, right=("seconds",))
    print(f"{len(found)} results in {store.root}")


@app.command()
def compare(
    first: Run,
    second: Run,
    out: Annotated[Path, typer.Option(help="Where the overlay plot goes.")] = Path("compare.png"),
    as_json: Json = False,
) -> None:
    """Two stored results side by side: which settings differ, by how much, and an overlay plot."""
    from krogh.lab.compare import differences, overlay, settings_that_differ
    from krogh.lab.report import number

    store = open_store()
    one, two = store.find(first), store.find(second)
    changed, table = settings_that_differ(one, two), differences(one, two)
    plot = overlay(one, two, out)
    if as_json:
        show_json({"runs": [one.key, two.key], "settings": changed, "variables": table, "plot": str(plot)})
        return
    names = [one.key[:8], two.key[:8]]
    show_table(["setting", *names], [[key, *map(str, pair)] for key, pair in changed.items()])
    head = ["variable", "n", *names, "difference", "95% interval"]
    lines = [[r["variable"], r["n"], r["first"], r["second"], r["difference"], *r["interval"]] for r in table]
    show_table(head, [[line[0], *map(number, line[1:5]), f"{line[5]:.4g} – {line[6]:.4g}"] for line in lines])
    print(f"overlay plot: {plot}")


@app.command()
def report(
    what: Annotated[str | None, typer.Argument(help="SYSTEM; nothing means all.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the site.")] = Path("report"),
) -> None:
    """Write the static site from the store and the ledger."""
    from krogh.lab.report import build
    from krogh.lab.system import systems

    known = systems()
    chosen = list(known.values()) if what is None else [known[check_choice("system", what, known)]]
    print(build(chosen, open_store(), out, tell=lambda text: say(f"report: {text}")).resolve())


@app.command("ledger")
def ledger_(what: What = None, as_json: Json = False) -> None:
    """The recorded verdicts."""
    from krogh.lab import ledger
    from krogh.lab.report import number, span

    rows = ledger.rows()
    if what is not None:
        slug, _, experiment = what.partition("/")
        check_choice("system in the ledger", slug, sorted({row["system"] for row in rows}))
        rows = [r for r in rows if r["system"] == slug]
        if experiment:
            check_choice(f"experiment of {slug} in the ledger", experiment, sorted({r["experiment"] for r in rows}))
            rows = [r for r in rows if r["experiment"] == experiment]
    if as_json:
        show_json(rows)
        return
    lines = []
    for r in rows:
        verdict = f"[{COLOURS[r['verdict']]}]{r['verdict']}[/]" + (" (stand-in)" if r.get("stand_in") else "")
        where = [r["preset"], r["device_kind"]]
        numbers = [number(r["measured"]), r["bound"], span(r["interval"]), str(r["n"]), r["date"][:10]]
        lines.append([r["system"], r["claim"], r["experiment"], *where, verdict, *numbers])
    head = ["system", "claim", "experiment", "preset", "device", "verdict"]
    show_table([*head, "measured", "bound", "95% interval", "n", "date"], lines, right=("measured", "n"))
    print(_counted([row["verdict"] for row in rows], 0))


@app.command()
def data(
    action: Annotated[str, typer.Argument(help="list, fetch or path.")] = "list",
    name: Annotated[str | None, typer.Argument(help="Name of a data set.")] = None,
    as_json: Json = False,
) -> None:
    """The real data: what there is, fetching it, and where it lies."""
    check_choice("action", action, ("list", "fetch", "path"))
    from krogh import data as real

    entries = real.catalogue()
    if name is not None and action != "fetch":
        raise InputError(f"krogh data {action} takes no name, got {name!r}; krogh data fetch does.")
    if action != "list":
        if action == "fetch" and name is None:
            raise InputError(f"krogh data fetch needs the name of a data set: {', '.join(entries)}.")
        where = str(real.folder() if name is None else real.fetch(check_choice("data set", name, entries)))
        show_json({"path": where}) if as_json else print(where)
    elif as_json:
        show_json([{"name": e.name, "about": e.about, "licence": e.licence} for e in entries.values()])
    else:
        show_table(["name", "what", "licence"], [[e.name, e.about, e.licence] for e in entries.values()])


@app.command()
def gemfilter(
    model: Annotated[str, typer.Option(help="Folder of a Hugging Face model, a .gguf file, or smollm2.")],
    context: Annotated[Path, typer.Option(help="Text file to be asked about.")],
    question: Annotated[str, typer.Option(help="What to ask.")],
    layer: Annotated[int | None, typer.Option(help="Filter layer, from 0; else found by needles in the text.")] = None,
    keep: Annotated[int, typer.Option(help="Tokens of the prompt to keep.")] = 1024,
    tokens: Annotated[int, typer.Option(help="Tokens to generate at most.")] = 50,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    html: Annotated[Path, typer.Option(help="Page with the kept tokens marked.")] = Path("gemfilter.html"),
    compare: Annotated[bool, typer.Option(help="Also answer with full attention.")] = True,
    as_json: Json = False,
) -> None:
    """Answer a question about a text from the few tokens that an early layer of the model points at."""
    from krogh import llm

    llm.require()
    try:
        text = context.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"cannot read the context {context}: {why}.") from error
    check_integer("the number of tokens to keep", keep, least=1)
    check_integer("the number of tokens to generate", tokens, least=1)
    from krogh.llm.show import ask

    answer = ask(*llm.load(model, device), text, question, layer, keep, tokens, compare)
    answer.write_html(html)
    summary = answer.summary()
    for note in answer.notes:
        say(note)
    if as_json:
        show_json(summary | {"html": str(html)})
        return
    from rich.console import Console

    Console().print(answer.terminal())
    rows = [
        [name, row["answer"], f"{row['seconds']:.2f}", f"{row['peak_bytes'] / 2**30:.2f} GiB", str(row["tokens"])]
        for name, row in summary.items()
        if isinstance(row, dict)
    ]
    show_table(["method", "answer", "seconds", "peak memory", "tokens"], rows, right=("seconds", "tokens"))
    print(f"filter layer {answer.layer}; page: {html}")


@app.command()
def bench(
    name: Annotated[str | None, typer.Argument(help="Name of a benchmark; nothing lists them.")] = None,
    as_json: Json = False,
    record: Annotated[bool, typer.Option("--record", help="Write the numbers into the ledger.")] = False,
) -> None:
    """Run a benchmark of the source checkout."""
    import runpy

    import krogh as package

    folder = Path(package.__file__ or "").parents[2] / "benchmarks"
    known = {path.stem: path for path in sorted(folder.glob("*.py")) if not path.stem.startswith("_")}
    if not known:
        raise InputError(f"there are no benchmarks in {folder}; run this from a source checkout (pip install -e .).")
    if name is None:
        show_json(list(known)) if as_json else print("\n".join(known))
        return
    runpy.run_path(str(known[check_choice("benchmark", name, known)]))["main"](json=as_json, record=record)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: bad input, a full disk or a missing device end in one sentence and exit code 2."""
    code = invoke(arguments)
    if code == INTERRUPTED:
        # An ordinary exit waits for the program on the device, which may take minutes.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def invoke(arguments: list[str] | None = None) -> int:
    """Run one command line; returns its exit code."""
    try:
        code = app(arguments, standalone_mode=False, prog_name="krogh") or 0
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        return code
    except InputError as error:
        return _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        say("\nstopped: finished parts are kept, and the same command goes on from there.")
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):  # the reader has gone; the parser's word for it is an exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _refuse(f"{error.filename or 'a file'}: {error.strerror or error}.")
    except MemoryError as error:
        return _refuse(f"out of memory: {error}; lower --seeds or the sizes in --set.")
    except Exception as error:
        if hasattr(error, "format_message"):  # the command-line parser's own errors
            return _refuse(_usage(error))
        if "RESOURCE_EXHAUSTED" in str(error):
            return _refuse("the device is out of memory; lower --seeds or the sizes in --set.")
        if not _device_works():
            wanted = os.environ.get("JAX_PLATFORMS") or "usable"
            return _refuse(f"JAX finds no {wanted} device here; unset JAX_PLATFORMS or set it to cpu.")
        raise


def _device_works() -> bool:
    import jax

    try:
        return bool(jax.devices())
    except (RuntimeError, AssertionError):  # which of the two depends on whether a GPU plugin is installed
        return False


def _usage(error: Any) -> str:
    text = " ".join(error.format_message().split()).rstrip(".")
    if "No such command" in text:
        commands = [c.name or c.callback.__name__ for c in app.registered_commands if c.callback]
        wrong = text.partition("'")[2].partition("'")[0]
        text += f"{nearest(wrong, commands)}; it can be {', '.join(commands)}"
    return text[:1].lower() + text[1:] + "."


def _refuse(text: str) -> int:
    say(f"krogh: {text}")
    return 2


if __name__ == "__main__":
    main()
