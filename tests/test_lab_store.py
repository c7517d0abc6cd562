"""The store, the code version and the ledger."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from lab_toy import forget, toy  # noqa: F401

from krogh.errors import InputError, StoreError
from krogh.lab import ledger
from krogh.lab import store as storing
from krogh.lab.claims import Verdict
from krogh.lab.store import Store, address
from krogh.lab.system import find
from krogh.lab.version import code_version


def calls() -> int:
    path = Path(os.environ["TOY_CALLS"])
    return path.stat().st_size if path.exists() else 0


def coins():
    return find("toy-coins/fig-1")[0]


def files(root: Path) -> set[str]:
    return {path.name for path in root.rglob("*") if path.is_file() and path.parent.name != "locks"}


@pytest.fixture
def store(toy, tmp_path):  # noqa: F811
    said: list[str] = []
    made = Store(tmp_path / "runs", say=said.append)
    made.said = said
    return made


def test_a_finished_result_is_reused_unless_fresh(store):
    first = store.obtain(coins())
    second = store.obtain(coins())
    assert (first.reused, second.reused, calls()) == (False, True, 1)
    xr.testing.assert_identical(first.dataset, second.dataset)
    assert second.dataset.heads.dtype == bool and set(second.dataset.side.values) == {"head", "tail"}
    assert not store.obtain(coins(), fresh=True).reused
    assert calls() == 2


def test_the_manifest_tells_how_a_result_was_made(store):
    made = store.obtain(coins(), changes=["p=0.5"], seeds=7).manifest
    assert made["settings"]["p"] == 0.5 and made["seeds"] == 7
    assert made["command"] == "krogh run toy-coins/fig-1 --preset quick --set p=0.5 --seeds 7"
    assert {"sha256", "versions", "device", "hardware", "seconds", "date", "preset"} <= made.keys()


def test_settings_and_experiment_make_the_address(store):
    experiment = coins()
    keys = {address(experiment, experiment.settings(p)) for p in ("smoke", "quick", "paper")}
    assert len(keys) == 3
    assert address(experiment, experiment.settings(changes=["p=0.9"])) in keys


@pytest.mark.parametrize("damage", ["truncated", "one bit", "no manifest", "no checksum", "empty", "manifest cut"])
def test_a_damaged_result_is_named_set_aside_and_made_again(store, damage):
    path = store.obtain(coins()).path
    manifest, content = path.with_suffix(".json"), path.read_bytes()
    if damage == "truncated":
        path.write_bytes(content[:-100])
    elif damage == "one bit":
        path.write_bytes(content[:500] + bytes([content[500] ^ 1]) + content[501:])
    elif damage == "no manifest":
        manifest.unlink()
    elif damage == "no checksum":
        manifest.write_text("{}")
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        manifest.write_text(manifest.read_text()[:50])
    again = store.obtain(coins())
    assert not again.reused and calls() == 2
    assert path.name in store.said[0] and "damaged" in store.said[0]
    assert any(path.name in name for name in files(store.root / "damaged"))
    assert store.obtain(coins()).reused


def test_a_full_disk_leaves_nothing_half_written(store, monkeypatch):
    def full(path: Path, content: bytes) -> int:
        with open(path, "wb") as file:
            file.write(content[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(StoreError, match="no space is left on the disk; nothing was half-written"):
            store.obtain(coins())
    assert files(store.root) == set()
    assert not store.obtain(coins()).reused


def test_a_store_that_cannot_be_written_says_so_before_computing(toy, tmp_path):  # noqa: F811
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        Store(tmp_path / "file").obtain(coins())
    assert calls() == 0


SCRIPT = """
import os, sys
import krogh.systems
krogh.systems.__path__ = [sys.argv[1]]
from krogh.lab import store
from krogh.lab.system import find
if "kill" in sys.argv:
    write = os.fsync
    store.os.fsync = lambda file: os.kill(os.getpid(), 9)
result = store.Store(say=lambda text: None).obtain(find("toy-coins/fig-1")[0], changes=["wait=1"])
print(result.key, result.reused)
"""


def start(folder: Path, *more: str) -> subprocess.Popen:
    command = [sys.executable, "-c", SCRIPT, str(folder.parent), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_killed_while_writing_then_run_again(toy, tmp_path):  # noqa: F811
    killed = start(toy, "kill")
    killed.communicate()
    assert killed.returncode == -9
    assert not [name for name in files(tmp_path / "runs") if not name.endswith(".tmp")]
    store = Store()
    assert not store.obtain(coins(), changes=["wait=1"]).reused
    assert {Path(name).suffix for name in files(store.root)} == {".nc", ".json"}


def test_two_processes_make_one_result(toy, tmp_path):  # noqa: F811
    both = [start(toy), start(toy)]
    told = [process.communicate()[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert told[0][0] == told[1][0]
    assert sorted(line[1] for line in told) == ["False", "True"]
    assert calls() == 1
    assert len(list((tmp_path / "runs").rglob("*.nc"))) == 1


def test_unfinished_work_is_kept_for_the_next_run_and_cleared_after_it(store, monkeypatch):
    from krogh.train.checkpoint import current_workspace

    experiment = coins()
    compute = experiment.function
    seen = []

    def interrupted(settings):
        folder = current_workspace().checkpoints
        seen.append((folder / "part").exists())
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "part").write_text("half")
        if len(seen) == 1:
            raise KeyboardInterrupt
        return compute(settings)

    monkeypatch.setattr(storing, "code_version", lambda function: "same")
    monkeypatch.setattr(experiment, "function", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.obtain(experiment)
    store.obtain(experiment)
    assert seen == [False, True]
    assert not list(store.root.rglob("*.partial"))
    store.obtain(experiment, fresh=True)
    assert seen[-1] is False


def test_parts_trained_apart_are_put_together(store, monkeypatch):
    import krogh as kr
    from krogh.train import engine

    def widths(settings):
        def of_width(width):
            run = kr.train(kr.tasks.SparseParity(n=5, k=2), kr.nn.MLP(width), kr.SGD(), 4, seeds=2, every=2)
            return run.data.loss.expand_dims(width=[width])

        return xr.concat([of_width(width) for width in settings.sizes], "width").to_dataset()

    experiment, trained, train = coins(), [], engine.Ensemble.run
    monkeypatch.setattr(storing, "code_version", lambda function: "same")
    monkeypatch.setattr(experiment, "function", widths)
    monkeypatch.setattr(engine.Ensemble, "run", lambda self, *args: trained.append(1) or train(self, *args))
    changes = ["sizes=3,4,5"]
    for part in ("sizes=4", "sizes=3"):
        assert store.contribute(experiment, [part], changes=changes).suffix == ".partial"
    assert len(trained) == 2 and not list(store.root.rglob("*.nc"))
    whole = store.obtain(experiment, changes=changes)
    assert len(trained) == 3 and not list(store.root.rglob("*.partial"))
    xr.testing.assert_identical(whole.dataset.drop_attrs(), widths(experiment.settings(changes=changes)).drop_attrs())
    trained.clear()
    assert store.contribute(experiment, ["sizes=5"], changes=changes) == whole.path and not trained


PROGRAMS = """
import sys
import jax
import xarray as xr
from krogh.lab.store import Store
if sys.argv[2] == "gpu":
    jax.default_backend = lambda: "gpu"
def compiled(settings):
    return xr.Dataset({"x": float(jax.jit(lambda x: x.sum() + 1)(jax.numpy.ones(3)))})
class Toy:
    name, function = "toy", staticmethod(compiled)
Store(sys.argv[1])._compute(Toy, None, __import__("pathlib").Path(sys.argv[1]) / "partial", False, None)
"""


@pytest.mark.parametrize(("backend", "own"), [("gpu", False), ("gpu", True), ("cpu", False)])
def test_programs_for_gpus_are_kept_unless_the_user_keeps_them(tmp_path, backend, own):
    home, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    plain = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    plain |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    if own:
        plain["JAX_COMPILATION_CACHE_DIR"] = str(elsewhere)
    subprocess.run([sys.executable, "-c", PROGRAMS, str(home), backend], check=True, env=plain)
    assert (home / "programs").exists() == (backend == "gpu" and not own)
    assert elsewhere.exists() == own


def test_runs_are_found_by_key_or_by_name(store):
    key = store.obtain(coins()).key
    assert store.find(key[:6]).key == store.find("toy-coins/fig-1@quick").key == key
    for run, told in [
        ("zzzz", "no run"),
        (key[:3], "at least 4 characters"),
        ("toy-coins/fig-1@paper", "krogh run toy-coins/fig-1 --preset paper"),
    ]:
        with pytest.raises(InputError, match=told):
            store.find(run)


def version_after(folder: Path, file: str, old: str, new: str) -> str:
    path = folder / f"{file}.py"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    forget()
    return code_version(coins().function)


def test_comments_docstrings_and_unused_code_keep_the_version(toy):  # noqa: F811
    before = code_version(coins().function)
    assert version_after(toy, "experiments", "    time.sleep", "    # a pause\n    time.sleep") == before
    assert version_after(toy, "experiments", '"""Tosses of one coin."""', '"""Throws."""') == before
    assert version_after(toy, "experiments", "Mostly heads", "Heads mostly") == before
    assert version_after(toy, "experiments", "seeds=400", "seeds=500") == before
    assert version_after(toy, "parts", '"""Tosses."""', '"""Throws."""') == before
    assert version_after(toy, "parts", "return 1", "return 2") == before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("experiments", "> 0.5", "> 0.6"),
        ("experiments", "OFFSET = 0.0", "OFFSET = 0.1"),
        ("experiments", "x + OFFSET", "x - OFFSET"),
        ("parts", "SCALE = 1.0", "SCALE = 2.0"),
        ("parts", "random(seeds) < p", "random(seeds) <= p"),
    ],
)
def test_code_that_is_used_changes_the_version(toy, file, old, new):  # noqa: F811
    before = code_version(coins().function)
    assert version_after(toy, file, old, new) != before


def test_a_change_in_a_shared_module_changes_the_version(toy, tmp_path, monkeypatch):  # noqa: F811
    import krogh

    shared = tmp_path / "shared" / "kroghparts"
    shared.mkdir(parents=True)
    (shared / "__init__.py").write_text("")
    (shared / "deep.py").write_text("from krogh.kroghparts import deeper\n\ndef f():\n    return deeper.g()\n")
    (shared / "deeper.py").write_text("def g():\n    return 1\n")
    monkeypatch.setattr(krogh, "__path__", [*krogh.__path__, str(shared.parent)])
    first = version_after(toy, "experiments", "OFFSET = 0.0", "from krogh.kroghparts.deep import f\nOFFSET = f()")
    (shared / "deeper.py").write_text('"""Doc."""\ndef g():\n    return 1  # one\n')
    forget()
    assert code_version(coins().function) == first
    (shared / "deeper.py").write_text("def g():\n    return 2\n")
    forget()
    assert code_version(coins().function) != first


def row(store, claim: int = 0, preset: str = "quick", **more) -> dict:
    experiment = coins()
    made = store.obtain(experiment, preset).manifest
    verdict = Verdict("holds", 0.9, ">= 0.5", (0.8, np.inf), 10)
    return ledger.row(experiment, experiment.claims[claim], preset, verdict, made) | more


def test_the_ledger_keeps_one_row_per_claim_preset_and_device(store):
    new = row(store)
    assert ledger.record_rows([new, row(store, 1), row(store, preset="paper")]) == 3
    assert ledger.record_rows([new | {"device_kind": "gpu"}]) == 1
    assert ledger.record_rows([new | {"verdict": "fails"}]) == 1
    found = ledger.rows("toy-coins")
    order = [(r["claim"], r["preset"], r["device_kind"]) for r in found]
    assert order == [
        ("99.1", "quick", "cpu"),
        ("99.1", "quick", "gpu"),
        ("99.1", "paper", "cpu"),
        ("99.2", "quick", "cpu"),
    ]
    assert found[0]["verdict"] == "fails" and found[0]["interval"] == [0.8, "inf"]


def test_a_new_date_alone_changes_nothing(store):
    ledger.record_rows([row(store)])
    before = (ledger.root() / "toy-coins.json").read_bytes()
    assert ledger.record_rows([row(store, date="2099-01-01T00:00:00Z", seconds=99)]) == 0
    assert (ledger.root() / "toy-coins.json").read_bytes() == before


def test_rows_of_claims_that_no_longer_exist_are_dropped(store):
    ledger.record_rows([row(store), row(store, claim_id := 1)])
    ledger.record_rows([row(store, claim_id)], known={("fig-1", "99.2", "quick")})
    assert [r["claim"] for r in ledger.rows()] == ["99.2"]


def test_benchmarks_share_the_ledger(toy):  # noqa: F811
    measured = ledger.measurement("engine", "64 replicas", 76_000.0, ">= 1.3x", holds=True)
    assert ledger.record_rows([measured]) == 1
    assert ledger.rows("engine")[0]["device_kind"] == "cpu"
    assert ledger.counts(ledger.rows("engine"), [("engine", "64 replicas"), ("engine", "x")]) == {
        "holds": 1,
        "fails": 0,
        "undecided": 0,
        "not yet": 1,
    }


def test_a_broken_ledger_file_is_named(toy):  # noqa: F811
    ledger.root().mkdir()
    (ledger.root() / "toy-coins.json").write_text("[{")
    with pytest.raises(InputError, match="toy-coins.json is not a ledger file"):
        ledger.rows()


def test_attributes_and_objects_without_a_netcdf_type_survive_as_text(tmp_path):
    attrs = {"none": None, "dict": {"a": 1}, "flag": True, "pair": (1, 2)}
    data = xr.Dataset({"o": ("a", np.array(["x", 3], object)), "b": ("a", [True, False])}, attrs=attrs)
    path = tmp_path / "s" / "e" / "k.nc"
    Store(tmp_path)._write(path, data, {"preset": "quick"})
    back = xr.load_dataset(path, engine="h5netcdf")
    assert [json.loads(back.attrs[name]) for name in attrs] == [None, {"a": 1}, True, [1, 2]]
    assert list(back.o.values) == ["x", "3"] and back.b.dtype == bool
