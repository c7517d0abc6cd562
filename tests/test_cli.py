"""The command line: what it does, and one sentence for everything it cannot do."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from lab_toy import toy  # noqa: F401

from krogh.cli import invoke, show_json
from krogh.errors import InputError, check_choice, check_integer, check_number
from krogh.lab import System
from krogh.lab.store import Store
from krogh.lab.system import read


@pytest.fixture
def krogh(toy, capsys):  # noqa: F811
    def call(*arguments: str) -> tuple[int, str, str]:
        code = invoke(list(arguments))
        return code, *capsys.readouterr()

    return call


def test_list_shows_systems_experiments_and_claims(krogh):
    code, out, _ = krogh("list")
    assert code == 0
    for told in ("toy-coins", "Is a coin fair?", "fig-1", "99.4", "needs paper", "stand-in: a coin for a die"):
        assert told in out
    cards = json.loads(krogh("list", "toy-coins", "--json")[1])
    assert [len(card["claims"]) for card in cards] == [4, 1]


def test_verify_judges_records_and_ends_with_its_exit_code(krogh):
    code, out, _ = krogh("verify", "toy-coins")
    assert code == 1
    assert "1 hold, 1 fail, 1 undecided, 2 need another preset" in out
    rows = json.loads(krogh("ledger", "--json")[1])
    assert {row["claim"]: row["verdict"] for row in rows} == {"99.1": "holds", "99.2": "fails", "99.3": "undecided"}
    wanted = "system experiment claim preset verdict measured bound interval n stand_in device versions date"
    assert set(wanted.split()) <= rows[0].keys()


def test_verify_is_0_when_all_hold_and_2_on_bad_input(krogh):
    assert krogh("verify", "toy-coins/fig-2", "--preset", "paper")[0] == 0
    assert krogh("verify", "toy-coins/fig-3")[0] == 2


def test_a_claim_for_another_preset_is_listed_and_does_not_count(krogh):
    rows = json.loads(krogh("verify", "--json")[1])
    assert {row["claim"]: row["verdict"] for row in rows if row["claim"] > "99.3"} == {
        "99.4": "needs paper",
        "99.5": "needs paper",
    }


@pytest.mark.parametrize("options", [["--seeds", "50"], ["--set", "p=1"], ["--preset", "smoke"], ["--no-record"]])
def test_what_is_not_the_preset_is_not_recorded(krogh, options):
    _, _, err = krogh("verify", "toy-coins", *options)
    assert options == ["--no-record"] or "not recorded" in err
    assert json.loads(krogh("ledger", "--json")[1]) == []


def test_a_part_is_kept_for_the_whole(krogh):
    code, out, _ = krogh("run", "toy-coins/fig-1", "--part", "sizes=2")
    assert code == 0 and out.strip().endswith(".partial") and Path(out.strip()).is_dir()
    assert krogh("run", "toy-coins/fig-1")[0] == 0 and not Path(out.strip()).exists()
    for options, told in (
        (["toy-coins/fig-1", "--part", "sizes=7"], "must be some of 1, 2"),
        (["toy-coins/fig-1", "--part", "p=0.5"], "only settings that list values have; those of toy-coins/fig-1"),
        (["toy-coins/fig-1", "--part", "size=2"], "sizes"),
        (["toy-coins/fig-1", "--part", "sizes=2", "--fresh"], "without --fresh"),
        (["toy-coins", "--preset", "paper", "--part", "sizes=2"], "one SYSTEM/EXPERIMENT"),
    ):
        code, _, err = krogh("run", *options)
        assert code == 2 and told in err and err.count("\n") == 1, err


def test_run_show_runs_and_compare(krogh, tmp_path):
    assert krogh("run", "toy-coins/fig-1")[0] == 0
    other = json.loads(krogh("run", "toy-coins/fig-1", "--set", "p=0.2", "--json")[1])[0]
    assert Path(other["path"]).suffix == ".nc"
    assert len(json.loads(krogh("runs", "--json")[1])) == 2
    assert other["key"][:8] in krogh("runs")[1]
    code, out, _ = krogh("show", other["key"][:6], "--figures", "drawn")
    assert code == 0 and "p=0.2" in out and "heads" in out
    assert {path.suffix for path in (tmp_path / "drawn").iterdir()} == {".png", ".pdf"}
    compared = json.loads(krogh("compare", "toy-coins/fig-1", other["key"][:6], "--json")[1])
    assert compared["settings"] == {"p": [0.9, 0.2]}
    assert {row["variable"]: row["difference"] for row in compared["variables"]} == {"heads": -1, "curve": -5}
    assert (tmp_path / "compare.png").stat().st_size > 1000
    runs = ["toy-coins/fig-1", other["key"][:6]]
    assert str(krogh("compare", *runs, "--out", "drawn/both")[1]).strip().endswith("drawn/both.png")
    for wrong in ("plot.xyz", "."):
        code, _, err = krogh("compare", *runs, "--out", wrong)
        assert code == 2 and "must be a file ending in .png" in err


def test_a_run_compared_with_itself_does_not_differ(krogh):
    krogh("run", "toy-coins/fig-1")
    rows = json.loads(krogh("compare", "toy-coins/fig-1", "toy-coins/fig-1", "--json")[1])["variables"]
    assert all(row["difference"] == 0 and row["interval"] == [0, 0] for row in rows)


def test_an_incomplete_manifest_hides_no_other_run(krogh, tmp_path):
    kept = json.loads(krogh("run", "toy-coins/fig-1", "--json")[1])[0]
    broken = json.loads(krogh("run", "toy-coins/fig-1", "--set", "p=0.2", "--json")[1])[0]
    manifest = Path(broken["path"]).with_suffix(".json")
    manifest.write_text(json.dumps({k: v for k, v in json.loads(manifest.read_text()).items() if k != "preset"}))
    assert [m["key"] for m in json.loads(krogh("runs", "--json")[1])] == [kept["key"]]


def test_json_has_no_words_that_json_does_not_know(capsys):
    show_json({"a": [math.inf, np.float64(np.nan)], "b": np.float32(0.5)})
    told = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(word))
    assert told == {"a": ["inf", "nan"], "b": 0.5}


def test_what_a_closed_pipe_leaves_is_no_failure():
    command = f"{sys.executable} -m krogh.cli list | head -1; exit ${{PIPESTATUS[0]}}"
    assert subprocess.run(["bash", "-c", command], capture_output=True).returncode == 0


def test_settings_that_break_an_experiment_are_told(krogh, monkeypatch):
    def breaks(*_):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(Store, "_compute", breaks)
    code, _, err = krogh("run", "toy-coins/fig-1", "--set", "p=0.3")
    assert code == 2 and "cannot run with p=0.3: division by zero." in err
    code, _, err = krogh("run", "toy-coins/fig-1", "--part", "sizes=1")
    assert code == 2 and "cannot run with sizes=1: division by zero." in err


def test_the_report_tells_what_ran_and_what_did_not(krogh, tmp_path):
    krogh("verify", "toy-coins")
    code, out, _ = krogh("report")
    assert code == 0 and Path(out.strip()) == tmp_path / "report" / "index.html"
    page = (tmp_path / "report" / "toy-coins.html").read_text()
    assert "Mostly &lt;tails&gt;" in page and "The coin is loaded." in page
    assert "not run yet" in page and "krogh run toy-coins/fig-2 --preset paper" in page
    for source in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert (tmp_path / "report" / source).exists()
    index = (tmp_path / "report" / "index.html").read_text()
    assert "1 holds" in index and "1 fails" in index and "5 not yet" in index


def test_a_claim_that_breaks_is_undecided_not_a_crash(krogh, toy):  # noqa: F811
    path = toy / "experiments.py"
    path.write_text(path.read_text().replace("share_at_most(ds.heads", "share_at_most(ds.headz"))
    code, out, _ = krogh("verify", "toy-coins")
    assert code == 1 and "could not be judged: AttributeError" in out


def test_an_interruption_says_that_finished_parts_are_kept(krogh, monkeypatch):
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "obtain", stop)
    code, _, err = krogh("run", "toy-coins")
    assert code == 130 and "finished parts are kept" in err


def test_every_real_system_can_be_addressed(monkeypatch, capsys):
    from krogh.lab.store import address
    from krogh.lab.system import systems

    for slug, system in systems().items():
        for experiment in system.experiments.values():
            for preset in experiment.available:
                assert len(address(experiment, experiment.settings(preset))) == 16
        experiment = next(iter(system.experiments))
        assert invoke(["run", f"{slug}/{experiment}x"]) == 2
        assert f"did you mean {experiment!r}" in capsys.readouterr().err
        assert invoke(["run", slug[:-1]]) == 2
        assert f"did you mean {slug!r}" in capsys.readouterr().err


BAD = {
    "unknown command": (["verfy"], "did you mean 'verify'"),
    "unknown option": (["run", "toy-coins", "--prset", "quick"], "--prset"),
    "missing argument": (["run"], "missing argument"),
    "extra argument": (["runs", "x"], "unexpected extra argument"),
    "option without value": (["run", "toy-coins", "--preset"], "requires an argument"),
    "unknown system": (["run", "toy-coin"], "did you mean 'toy-coins'"),
    "unknown system far off": (["verify", "zebra"], "it can be toy-coins"),
    "empty system": (["run", ""], "unknown system ''"),
    "unknown experiment": (["run", "toy-coins/fig-11"], "did you mean 'fig-1'"),
    "empty experiment": (["run", "toy-coins/"], "it can be fig-1, fig-2"),
    "unknown preset": (["run", "toy-coins", "--preset", "papr"], "did you mean 'paper'"),
    "preset it has not": (["run", "toy-coins/fig-2"], "it can be paper"),
    "set without value": (["run", "toy-coins/fig-1", "--set", "p"], "key=value"),
    "set without key": (["run", "toy-coins/fig-1", "--set", "=3"], "key=value"),
    "unknown setting": (["run", "toy-coins/fig-1", "--set", "sedes=3"], "did you mean 'seeds'"),
    "text for int": (["run", "toy-coins/fig-1", "--set", "seeds=many"], "a whole number"),
    "fraction for int": (["run", "toy-coins/fig-1", "--set", "seeds=2.5"], "a whole number"),
    "huge for int": (["run", "toy-coins/fig-1", "--set", "seeds=1e999"], "a whole number"),
    "text for float": (["run", "toy-coins/fig-1", "--set", "p=half"], "a number"),
    "nan for float": (["run", "toy-coins/fig-1", "--set", "p=nan"], "a number"),
    "out of range": (["run", "toy-coins/fig-1", "--set", "p=2"], "between 0 and 1"),
    "text for bool": (["run", "toy-coins/fig-1", "--set", "deep=maybe"], "true or false"),
    "not a choice": (["run", "toy-coins/fig-1", "--set", "kind=odd"], "fair or loaded"),
    "bad tuple": (["run", "toy-coins/fig-1", "--set", "sizes=1,b"], "separated by commas"),
    "broken tuple": (["run", "toy-coins/fig-1", "--set", "sizes=(1,"], "separated by commas"),
    "code in a tuple": (["run", "toy-coins/fig-1", "--set", "sizes=__import__('os')"], "separated by commas"),
    "text for optional": (["run", "toy-coins/fig-1", "--set", "limit=x"], "a whole number or none"),
    "no seeds": (["run", "toy-coins/fig-1", "--seeds", "0"], "at least 1"),
    "text seeds": (["run", "toy-coins/fig-1", "--seeds", "x"], "--seeds"),
    "unknown run": (["show", "deadbeef"], "no run 'deadbeef'"),
    "short run": (["show", "ab"], "at least 4 characters"),
    "run not made": (["show", "toy-coins/fig-1"], "krogh run toy-coins/fig-1"),
    "run with bad preset": (["show", "toy-coins/fig-1@fast"], "unknown preset 'fast'"),
    "compare one": (["compare", "toy-coins/fig-1"], "missing argument"),
    "compare unknown": (["compare", "aaaa", "bbbb"], "no run 'aaaa'"),
    "report of unknown": (["report", "toy"], "did you mean 'toy-coins'"),
    "ledger of unknown": (["ledger", "toy"], "unknown system in the ledger"),
    "unknown data action": (["data", "fech"], "did you mean 'fetch'"),
    "data without name": (["data", "fetch"], "needs the name"),
    "unknown data": (["data", "fetch", "mnst"], "did you mean 'mnist'"),
    "unknown benchmark": (["bench", "enigne"], "bench"),
    "negative seeds set": (["run", "toy-coins/fig-1", "--set", "seeds=-1"], "at least 1"),
    "seeds twice": (["run", "toy-coins/fig-1", "--set", "seeds=3", "--seeds", "4"], "given twice"),
    "data with a surplus name": (["data", "path", "mnist"], "takes no name"),
}


@pytest.mark.parametrize(("arguments", "told"), BAD.values(), ids=BAD)
def test_bad_input_gets_one_sentence_and_exit_2(krogh, tmp_path, arguments, told):
    code, out, err = krogh(*arguments)
    assert code == 2
    assert told.lower() in err.lower()
    assert err.count("\n") == 1 and err.startswith("krogh: ") and err.endswith(".\n")
    assert "Traceback" not in err and out == ""
    assert not (tmp_path / "calls").exists()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(28, "No space left on device", "runs/x"), "runs/x: No space left on device"),
        (PermissionError(13, "Permission denied", "runs"), "runs: Permission denied"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes"), "the device is out of memory"),
        (MemoryError("Unable to allocate 8 TiB"), "lower --seeds"),
    ],
)
def test_the_machine_refusing_gets_one_sentence_too(krogh, monkeypatch, error, told):
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Store, "obtain", broken)
    code, _, err = krogh("run", "toy-coins/fig-1")
    assert code == 2 and told in err and err.count("\n") == 1


def test_a_missing_device_gets_one_sentence(krogh, monkeypatch):
    import jax

    from krogh.lab.environment import environment

    def none(*_: object) -> None:
        raise RuntimeError("Unable to initialize backend 'cuda'")

    environment.cache_clear()
    monkeypatch.setattr(jax, "devices", none)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    code, _, err = krogh("run", "toy-coins/fig-1")
    assert code == 2 and "no cuda device" in err and err.count("\n") == 1


def test_a_store_that_is_a_file_gets_one_sentence(krogh, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KROGH_HOME", str(tmp_path / "file"))
    code, _, err = krogh("run", "toy-coins/fig-1")
    assert code == 2 and "cannot write" in err and err.count("\n") == 1


def _judged_twice(experiment):
    return experiment.claim("1b", "so too")(experiment.claim("1", "so")(print))


@pytest.mark.parametrize(
    "call",
    [
        lambda: check_choice("loss", "hige", ["hinge", "square"]),
        lambda: check_integer("width", 2.5),
        lambda: check_integer("width", True),
        lambda: check_integer("width", 0, least=1),
        lambda: check_number("lr", float("nan")),
        lambda: check_number("lr", "0.1"),
        lambda: check_number("lr", 2, least=0, most=1),
        lambda: read("x", tuple[int, int], "shape"),
        lambda: read("1,2,3", tuple[int, int], "shape"),
        lambda: read("x", dict, "table"),
        lambda: System("s", 1, "t", "q", "x").experiment("e", "t", presets={"smok": 1})(print),
        lambda: System("s", 1, "t", "q", "x").experiment("e", "t", presets={"smoke": 1})(print),
        lambda: _judged_twice(System("s", 1, "t", "q", "x").experiment("e", "t", presets={"quick": 1})(print)),
    ],
)
def test_the_api_refuses_in_one_sentence(call):
    with pytest.raises(InputError, match=r"^[^\n]+\.$"):
        call()


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("1e4", int, 10_000),
        ("10_000", int, 10_000),
        ("-3", int, -3),
        ("1", float, 1.0),
        ("inf", float, float("inf")),
        ("no", bool, False),
        ("none", int | None, None),
        ("7", int | None, 7),
        ("7", int | str, 7),
        ("all", int | str, "all"),
        ("1,2", tuple[int, ...], (1, 2)),
        ("3", tuple[int, ...], (3,)),
        ("", tuple[int, ...], ()),
        ("1e2,-5", tuple[int, ...], (100, -5)),
        ("relu, tanh", tuple[str, ...], ("relu", "tanh")),
        ("(1,2),(3,4)", tuple[tuple[int, int], ...], ((1, 2), (3, 4))),
    ],
)
def test_settings_are_read_as_the_type_they_declare(text, hint, value):
    found = read(text, hint, "key")
    assert found == value and type(found) is type(value)


def test_an_interrupt_does_not_wait_for_the_program_on_the_device(tmp_path):
    one_long_chunk = ["--set", "steps=100000000", "--set", "every=100000000"]
    # parallel test runners ignore interrupts, and their children with them
    program = (
        "import signal; from krogh.cli import main; signal.signal(signal.SIGINT, signal.default_int_handler); main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, "run", "hidden-progress/fig-5.3", "--preset", "smoke", *one_long_chunk],
        env=os.environ | {"KROGH_HOME": str(tmp_path), "JAX_LOG_COMPILES": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        next(line for line in process.stderr if "Compiling jit(run)" in line)
        time.sleep(3)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "stopped: finished parts are kept" in told
