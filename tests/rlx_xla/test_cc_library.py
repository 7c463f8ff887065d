"""Finding, checking and registering the library of C++ kernels."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest

from rlx.errors import KernelError
from rlx_xla._jax_compat import ffi as jax_ffi
from rlx_xla.kernels import ffi
from rlx_xla.kernels.ffi import LoadedLibrary, Unavailable, check, load

SOURCES = Path(__file__).parents[2] / "rlx_xla" / "kernels" / "cc"


@pytest.fixture
def library() -> LoadedLibrary:
    loaded = load()
    if isinstance(loaded, Unavailable):
        pytest.skip(loaded.reason)  # test_cc_argreduce fails where a compiler exists
    return loaded


def test_the_running_jaxlib_says_its_ffi_version():
    version = jax_ffi.runtime_api_version()
    assert version is not None
    assert version >= (0, 1)


def test_the_library_is_no_newer_than_the_runtime(library):
    runtime = jax_ffi.runtime_api_version()
    assert runtime is not None
    assert library.api_version <= runtime


@pytest.mark.skipif(not SOURCES.is_dir(), reason="runs against an install without sources")
def test_the_library_is_built_from_the_sources_beside_it(library):
    grids = [SOURCES.parents[2] / "rlx" / "quant" / "iq_tables.py", SOURCES / "make_grids.py"]
    files = [*sorted(SOURCES.glob("*.cc")), *sorted(SOURCES.glob("*.h")), *grids]
    digests = "".join(hashlib.sha256(f.read_bytes()).hexdigest() for f in files)
    digest = hashlib.sha256(digests.encode()).hexdigest()[:12]
    assert library.version.endswith(f"+{digest}"), "stale: run `make native` or reinstall"


def test_a_target_is_registered_once_by_many_threads(library):
    seen: list[str] = []
    threads = [
        threading.Thread(target=lambda: seen.append(library.target("rlx_argreduce_i32_cpu")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert set(seen) == {f"rlx_argreduce_i32_cpu.{library.version.partition('+')[2]}"}


def test_a_symbol_that_is_missing(library):
    assert not library.has("rlx_nothing_cpu")
    with pytest.raises(KernelError, match=r"'rlx_nothing_cpu' is required; librlx_kernels.* none"):
        library.target("rlx_nothing_cpu")


@pytest.mark.parametrize("runtime", [(0, 0), (1, 0)])
def test_a_runtime_that_does_not_fit_is_refused(library, monkeypatch, runtime):
    monkeypatch.setattr(jax_ffi, "runtime_api_version", lambda: runtime)
    found = check(library.path)
    assert isinstance(found, Unavailable)
    assert f"the installed jaxlib has {runtime[0]}.{runtime[1]}" in found.reason


def test_a_runtime_that_hides_its_version_is_refused(library, monkeypatch):
    monkeypatch.setattr(jax_ffi, "runtime_api_version", lambda: None)
    found = check(library.path)
    assert isinstance(found, Unavailable)
    assert "does not say which XLA FFI version" in found.reason


def test_a_file_that_is_no_library(tmp_path):
    path = tmp_path / "librlx_kernels-0.so"
    path.write_text("not a library")
    found = check(path)
    assert isinstance(found, Unavailable)
    assert "does not load" in found.reason


def test_an_install_without_a_compiler_says_so(tmp_path, monkeypatch):
    (tmp_path / "build_info.json").write_text(
        '{"library": "", "reason": "built without a C++ compiler"}\n'
    )
    monkeypatch.setattr(ffi, "native_directories", lambda: [tmp_path])
    assert ffi.find() == Unavailable("built without a C++ compiler")


def test_a_tree_where_nothing_was_built(monkeypatch):
    monkeypatch.setattr(ffi, "native_directories", list)
    found = ffi.find()
    assert isinstance(found, Unavailable)
    assert "make native" in found.reason


def test_a_library_that_went_missing(tmp_path, monkeypatch):
    (tmp_path / "build_info.json").write_text('{"library": "gone.so", "reason": ""}\n')
    monkeypatch.setattr(ffi, "native_directories", lambda: [tmp_path])
    found = ffi.find()
    assert isinstance(found, Unavailable)
    assert "gone.so is missing" in found.reason
