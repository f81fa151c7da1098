#!/usr/bin/env python3
"""Write requirements/*.txt: the versions of constraints.txt with the hashes of their files.

    pip install uv && python scripts/lock.py

build.txt is what builds packages from source, torch.txt torch's CUDA build with its libraries,
demo.txt and dev.txt the rest of what scripts/setup.sh installs, image.txt that of
deploy/Dockerfile, release.txt what scripts/release.sh runs. They hold for Linux on x86-64 and
CPython 3.11 to 3.13, and are complete, so that `pip install --no-deps --require-hashes -r FILE`
checks every file.
"""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMPILE = [
    *("uv", "pip", "compile", "--constraint", "constraints.txt", "--universal"),
    *("--python-version", "3.11.0", "--format", "pylock.toml", "--quiet", "--no-header"),
]
DEMO = ("report",)
"""The extras that scripts/demo.sh uses."""
IMAGE = ("remote", "report", "serve", "sites")
"""The extras in the image of deploy/Dockerfile."""
RELEASE = "build\ncyclonedx-bom\nsetuptools\ntwine\n"
"""What builds and checks a release."""
WINDOWS = ("sys_platform == 'win32'", "os_name == 'nt'")
"""Markers of packages that are left out."""
TORCH = re.compile(r"torch|triton|nvidia-.*|cuda-.*")
"""torch, and what only its CUDA build needs."""
WHEEL = re.compile(r".*-(cp31[123]-cp31[123]|cp3\d+-abi3|[\w.]*py3[\w.]*-none)-(.*)\.whl")


def resolve(*extras: str, requirements: str = "") -> dict[str, dict[str, Any]]:
    """The packages of pyproject.toml and its extras, or of other files, with hashes by name."""
    options = [word for extra in extras for word in ("--extra", extra)]
    command = [*COMPILE, "-" if requirements else "pyproject.toml", *options]
    lock = subprocess.run(
        command, cwd=ROOT, input=requirements, stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    packages = tomllib.loads(lock)["packages"]
    return {each["name"]: each for each in packages if each.get("marker") not in WINDOWS}


def is_usable(file: dict[str, Any]) -> bool:
    """Whether a file is source, or a wheel for one of the supported Pythons on Linux x86-64."""
    name = file["url"].rpartition("/")[2]
    wheel = WHEEL.fullmatch(name)
    if wheel is None:
        return not name.endswith(".whl")
    return wheel[2] == "any" or ("manylinux" in wheel[2] and "x86_64" in wheel[2])


def entry(package: dict[str, Any]) -> str:
    """One requirement with the hash of each usable file."""
    files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else [])]
    marker = f" ; {package['marker']}" if "marker" in package else ""
    hashes = sorted(file["hashes"]["sha256"] for file in files if is_usable(file))
    lines = [f"{package['name']}=={package['version']}{marker}"]
    return " \\\n    ".join([*lines, *(f"--hash=sha256:{each}" for each in hashes)]) + "\n"


def main() -> None:
    demo, dev, image = resolve(*DEMO), resolve("dev"), resolve(*IMAGE)
    for name, packages in {
        "build": {"setuptools": demo["setuptools"]},
        "torch": {name: each for name, each in demo.items() if TORCH.fullmatch(name)},
        "demo": {name: each for name, each in demo.items() if not TORCH.fullmatch(name)},
        "dev": {name: each for name, each in dev.items() if not TORCH.fullmatch(name)},
        "release": resolve(requirements=RELEASE),
        "image": {name: each for name, each in image.items() if not TORCH.fullmatch(name)},
    }.items():
        text = "# Written by scripts/lock.py.\n" + "".join(map(entry, packages.values()))
        (ROOT / "requirements" / f"{name}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
