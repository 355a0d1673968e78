"""The Dockerfile agrees with the linter, the Makefile, the package and the files that start its image."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from image import FOLDER, PORT, PROJECT, ROOT, USER, VERSION

TEXT = (ROOT / "Dockerfile").read_text()


def test_the_linter_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    if not hadolint.exists():
        pytest.skip("hadolint is not installed: put the program from https://github.com/hadolint/hadolint on PATH")
    done = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_versions_are_those_of_the_makefile_and_the_package() -> None:
    makefile = re.search(r"^UV_VERSION := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert makefile is not None
    assert re.findall(r"uv==(\S+)", TEXT) == [makefile[1]]
    for label, value in {"version": VERSION, "description": PROJECT["description"], "licenses": "MIT"}.items():
        assert f'org.opencontainers.image.{label}="{value}"' in TEXT
    assert PROJECT["license"] == "MIT"


@pytest.mark.parametrize(
    "line",
    [
        f"    TURNKEEP_PORT={PORT} \\", f"EXPOSE {PORT}", f"    TURNKEEP_DATA_DIR={FOLDER}", f"VOLUME {FOLDER}",
        f"USER {USER}:{USER}", 'ENTRYPOINT ["turnkeep"]', 'CMD ["serve"]',
    ],
)  # fmt: skip
def test_it_runs_as_the_files_that_start_it_expect(line: str) -> None:
    assert line in TEXT.splitlines()
