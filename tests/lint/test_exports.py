# SPDX-License-Identifier: Apache-2.0
import subprocess
from pathlib import Path

from tests.lint.exports import defined_symbols, export_problems
from tests.lint.tree import ROOT

PROVIDER = ROOT / "build/c/src/provider/libnearmetal-fi.so"


def _library(folder: Path, code: str) -> Path:
    source, library = folder / "a.c", folder / "liba.so"
    source.write_text(code)
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", library], check=True)
    return library


def test_provider_exports_its_entry_point_only() -> None:
    assert PROVIDER.exists(), "the provider is not built: run make setup"
    assert export_problems(PROVIDER) == []


def test_slurm_plugin_exports_what_slurm_looks_up_and_nothing_else() -> None:
    plugin = ROOT / "build/c/src/spank/spank_nearmetal.so"
    assert plugin.exists(), "the plugin is not built: run make setup"
    names = defined_symbols(plugin)
    known = {"plugin_name", "plugin_type", "plugin_version", "spank_plugin_version"}
    assert known < names
    hooks = {name.removeprefix("slurm_spank_") for name in names - known}
    assert hooks == {
        "init",
        "init_post_opt",
        "job_epilog",
        "job_prolog",
        "task_init",
        "task_init_privileged",
    }


def test_the_product_has_no_marks_for_faults() -> None:
    assert PROVIDER.exists(), "the provider is not built: run make setup"
    names = subprocess.run(["nm", PROVIDER], check=True, capture_output=True, text=True).stdout
    assert "nm_engine_create" in names
    assert "nm_fault" not in names


def test_additional_symbol_is_found(tmp_path: Path) -> None:
    library = _library(tmp_path, "int fi_prov_ini(void) { return 0; } int nm_leak;")
    assert export_problems(library) == ["exports nm_leak"]


def test_missing_entry_point_is_found(tmp_path: Path) -> None:
    library = _library(tmp_path, "static int a; int *nm_a(void); int *nm_a(void) { return &a; }")
    assert export_problems(library) == ["exports nm_a", "does not export fi_prov_ini"]


def test_reference_to_libfabric_is_found(tmp_path: Path) -> None:
    code = "int fi_getinfo(void); int fi_prov_ini(void); int fi_prov_ini(void) { return fi_getinfo(); }"
    (found,) = export_problems(_library(tmp_path, code))
    assert found.startswith("needs fi_getinfo from libfabric")
