"""The name `retexo` on the public package index is somebody else's: nothing tells anybody to install that."""

import re
import subprocess
import tomllib

from support import ROOT

from retexo import __version__

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_distribution_has_a_name_of_its_own() -> None:
    assert PROJECT["name"] == "retexo-gnn"
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)
    own = [name for name in PROJECT["optional-dependencies"]["dev"] if name.startswith("retexo")]
    extras = PROJECT["optional-dependencies"].keys() - {"dev"}
    assert [set(re.split(r"[\[\],]", name)) - {""} for name in own] == [{"retexo-gnn", *extras}]


def test_nobody_is_told_to_install_a_strangers_package() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    texts = [ROOT / name for name in listed if name.endswith((".py", ".md", ".sh", ".toml", ".yaml"))]
    assert not [path for path in texts if re.search(r"pip install +['\"]?retexo", path.read_text())]
