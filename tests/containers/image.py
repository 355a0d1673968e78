"""The image of this release, as the files that start it name it; `test_dockerfile` compares it with the Dockerfile."""

import tomllib
from pathlib import Path

from app.settings import setting_fields

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
PORT = str(setting_fields()["port"].default)
FOLDER = "/data"
USER = 10001
