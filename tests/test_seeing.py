# SPDX-License-Identifier: MIT
"""Log, ranges of NVTX, versions, and objects in text and HTML show calls at work."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, CompileError
from cupy_training_ops.device import compiler, launch
from cupy_training_ops.log import LOG
from cupy_training_ops.summary import Summary

ROOT = Path(__file__).parent.parent
ARTIFACTS = ROOT / "examples" / "onnx_digits"


class Records(logging.Handler):
    """Levels and texts of a logger, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []

    def emit(self, record) -> None:
        self.lines.append((record.levelname, record.getMessage()))


@pytest.fixture
def log():
    """The lines that are logged from here on."""
    records, level = Records(), LOG.level
    LOG.addHandler(records)
    LOG.setLevel(logging.DEBUG)
    yield records.lines
    LOG.removeHandler(records)
    LOG.setLevel(level)


@pytest.fixture
def hollow():
    """Make CuPy's arrays without a GPU; what is launched is noted."""
    pytest.importorskip("cupy", reason="CuPy is in the extras")
    from cupy_training_ops.testing import hollow as module

    with module.hollow_launches() as launches:
        yield module.hollow, launches


# ---- the log -------------------------------------------------------------------------------------


def test_nothing_is_shown_unless_asked_for() -> None:
    code = "import numpy as np, cupy_training_ops as cto; cto.gelu(np.ones(3, np.float32))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert (ran.stdout, ran.stderr) == (b"", b"")


def test_a_plan_is_logged_once_for_each_kind_of_call(log, rng) -> None:
    op = cto.ReluGrad()
    for shape in ((3, 4), (3, 4), (5,)):
        x = rng.standard_normal(shape)
        op(x, x)
    assert log == [
        ("DEBUG", f"plan: ReluGrad dY=float64{shape} X=float64{shape}: NumPy's relu_grad")
        for shape in ((3, 4), (5,))
    ]


def test_a_plan_names_its_kernels(log, hollow) -> None:
    make, _ = hollow
    x = make((3, 4), np.float32)
    for _ in range(2):
        cto.ReluGrad()(x, x)
    plans = [text for level, text in log if level == "DEBUG" and text.startswith("plan: ")]
    kind = "ReluGrad dY=float32(3, 4) X=float32(3, 4)"
    assert [text.partition(": ")[2].partition(": ")[0] for text in plans] == [kind] * 2
    assert all("relu_grad" in text and "0 bytes of scratch memory" in text for text in plans)


def test_a_long_list_is_cut_in_the_log(log) -> None:
    cto.ConcatTraining(axis=0)([np.ones(1, np.float32)] * 50)
    ((_, text),) = log
    assert text.count("float32") == 8
    assert "... " not in text
    assert "...:" in text


@pytest.mark.parametrize("is_cached", [False, True])
def test_a_compilation_is_logged_with_its_seconds(is_cached, log, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    os.utime(tmp_path, (1, 1))
    with compiler.logged("some.cu -DCTO_T=float"):
        if not is_cached:
            (tmp_path / "kernel.cubin").touch()
    ((level, text),) = log
    assert level == ("DEBUG" if is_cached else "INFO")
    kind = "from the cache" if is_cached else "compiled"
    assert re.fullmatch(rf"{kind}: some\.cu -DCTO_T=float: \d+\.\d\d s", text)


def test_cupys_modules_are_logged(log, tmp_path, monkeypatch) -> None:
    pytest.importorskip("cupy", reason="CuPy is in the extras")
    from cupy_training_ops.device import cuda

    class Compiled:
        def __init__(self, **_: object) -> None:
            """Take the code."""

        def compile(self) -> None:
            (tmp_path / "kernel.cubin").touch()

    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    os.utime(tmp_path, (1, 1))
    monkeypatch.setattr(cuda.cupy, "RawModule", Compiled)
    cuda.BACKEND.load(type("Source", (), {"name": "some", "code": ""})(), ("-DCTO_T=float",))
    assert log[0][0] == "INFO"
    assert log[0][1].startswith("compiled: some.cu -DCTO_T=float")


def test_a_module_that_did_not_compile_is_no_compilation(log, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    with pytest.raises(CompileError), compiler.logged("some.cu"):
        raise CompileError("no")
    assert log == []


def test_an_activation_without_codes_is_logged_once(log, rng) -> None:
    outliers = np.where(rng.random((64, 256)) < 0.01, 1e4, 1.0).astype(np.float32)
    stash = cto.ActivationStash()
    for _ in range(2):
        with stash:
            stash.put("x", outliers * rng.standard_normal((64, 256)).astype(np.float32), "linear")
            stash.get("x")
        assert stash.report()["names"]["x"]["codec"] is None
    (text,) = [text for level, text in log if level == "INFO"]
    assert text.startswith("fallback: stored without codes: failed check: tiles: ('x', 'linear'")


# ---- NVTX ----------------------------------------------------------------------------------------


def test_launches_are_in_a_range_with_operator_and_shapes(hollow, monkeypatch) -> None:
    from cupy.cuda import nvtx as library

    make, launches = hollow
    monkeypatch.setattr(launch, "HAS_RANGES", True)
    events: list[str] = []
    monkeypatch.setattr(library, "RangePush", lambda label: events.append(label))
    monkeypatch.setattr(library, "RangePop", lambda: events.append(f"{len(launches)} launches"))
    x, op = make((3, 4), np.float32), cto.ReluGrad()
    for n in (1, 2):
        op(x, x)
        assert events == ["ReluGrad dY=float32(3, 4) X=float32(3, 4)", f"{n} launches"]
        events.clear()


def test_a_range_ends_with_an_exception(monkeypatch, hollow) -> None:
    from cupy.cuda import nvtx as library

    make, _ = hollow
    monkeypatch.setattr(launch, "HAS_RANGES", True)
    events: list[str] = []
    monkeypatch.setattr(library, "RangePush", lambda _: events.append("push"))
    monkeypatch.setattr(library, "RangePop", lambda: events.append("pop"))
    x, op = make((3, 4), np.float32), cto.ReluGrad()
    monkeypatch.setattr(launch.ReadyPlan, "run", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        op(x, x)
    assert events == ["push", "pop"]


def test_there_are_no_ranges_by_default(hollow, monkeypatch) -> None:
    from cupy.cuda import nvtx as library

    monkeypatch.setattr(library, "RangePush", None)
    make, launches = hollow
    x = make((3, 4), np.float32)
    cto.ReluGrad()(x, x)
    assert len(launches) == 1


@pytest.mark.parametrize(("value", "is_on"), [("1", True), ("0", False), (None, False)])
def test_the_environment_asks_for_ranges(value, is_on) -> None:
    code = "from cupy_training_ops.device import launch; print(launch.HAS_RANGES)"
    own = {k: v for k, v in os.environ.items() if k != "CTO_NVTX"}
    env = own if value is None else own | {"CTO_NVTX": value}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == str(is_on)


# ---- versions ------------------------------------------------------------------------------------


def test_versions_are_shown(capsys, monkeypatch) -> None:
    monkeypatch.setenv("CTO_TIMEOUT", "3\x1b[31m")
    cto.show_versions()
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    shown = {name.strip(): text.strip() for name, text in rows.items()}
    assert shown["cupy-training-ops"] == cto.__version__
    assert shown["numpy"] == np.__version__
    assert shown["provider cpu"] == "can run"
    assert shown["provider cuda"] == (cto.providers()["cuda"] or "can run")
    assert "\x1b" not in shown["CTO_TIMEOUT"]
    assert {"python", "system", "processor", "cores"} <= shown.keys()


# ---- objects in text and HTML --------------------------------------------------------------------


class Table(HTMLParser):
    """Rows of a table by their heading, and its caption."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: dict[str, list[str]] = {}
        self.tag = ""
        self.feed(text)

    def handle_starttag(self, tag, _) -> None:
        self.tag = tag
        self.cells.setdefault(tag, [])

    def handle_data(self, data) -> None:
        self.cells[self.tag].append(data)


def objects() -> dict[str, object]:
    stash = cto.ActivationStash("small")
    with stash:
        stash.put("<x>", np.ones((8, 16), np.float32), "linear")
    shown = {
        "Packed": cto.compress(np.ones((2, 3), np.float32), "pack16"),
        "ActivationStash": stash,
        "ProcessGroup": cto.ProcessGroup(0, 1),
    }
    try:
        import onnx  # noqa: F401
    except ImportError:
        return shown
    return shown | {
        "Session": cto.onnx.Session(ARTIFACTS / "eval_model.onnx"),
        "TrainingSession": cto.onnx.TrainingSession(ARTIFACTS),
    }


@pytest.mark.parametrize("name", ["Packed", "ActivationStash", "ProcessGroup", "TrainingSession"])
def test_an_object_shows_its_facts(name) -> None:
    shown = objects().get(name)
    if shown is None:
        pytest.skip("onnx is in the extra onnx")
    facts = shown._facts()
    table = Table(shown._repr_html_())
    assert table.cells["caption"] == [name]
    assert dict(zip(table.cells["th"], table.cells["td"], strict=True)) == {
        k: str(v) for k, v in facts.items()
    }
    if name != "ProcessGroup":
        assert repr(shown) == f"{name}({', '.join(f'{k}={v!r}' for k, v in facts.items())})"


def test_text_in_a_table_is_escaped() -> None:
    class Odd(Summary):
        def _facts(self) -> dict[str, object]:
            return {"<i>": "<b>&\x1b"}

    assert "<tr><th>&lt;i&gt;</th><td>&lt;b&gt;&amp;\\x1b</td></tr>" in Odd()._repr_html_()


def test_a_stash_shows_bytes() -> None:
    stash = cto.ActivationStash()
    with stash:
        stash.put("x", np.ones((64, 64), np.float16), "sign")
        assert repr(stash) == (
            "ActivationStash(policy='default', is_inside=True, arrays=1, before=8192, held=512, "
            "peak=512)"
        )
    assert "is_inside=False, arrays=0, before=8192, held=0, peak=512" in repr(stash)


def test_compressed_activations_show_bytes() -> None:
    torch = pytest.importorskip("torch")
    saved = cto.torch.compressed_activations("wide")
    x = torch.randn(64, 64, requires_grad=True)
    with saved:
        y = torch.relu(torch.nn.functional.linear(x * 2, x[:8] * 1))
    assert repr(saved).startswith("CompressedActivations(policy='wide', check=False, held=")
    assert f"peak={saved.report()['peak']}" in repr(saved)
    assert "wide" in Table(saved._repr_html_()).cells["td"]
    del y


@pytest.mark.parametrize("read", [np.asarray, np.array, lambda p: np.ones(3) + p, np.add.reduce])
def test_a_packed_array_is_no_array(read) -> None:
    packed = cto.compress(np.ones(3, np.float32), "pack8")
    with pytest.raises(ArgumentError, match=r"Packed: expected an array.*decompress\(\)"):
        read(packed)
