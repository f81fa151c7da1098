"""What files of --config-dir and overrides may set of Hydra: nothing that makes it call functions.

Hydra instantiates the `_target_`s of callbacks, launchers and sweepers, and configures the handlers
of logging by class, so the files are checked before Hydra reads them.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import yaml

from partitioning.errors import InputError
from partitioning.files.file_io import UNREADABLE, open_regular
from retexo.settings.flatten import flatten

MAX_BYTES = 200_000
OF_HYDRA = re.compile(
    r"hydra\.(run|sweep)(\.[^@]+)?=.*"
    r"|hydra\.(mode|verbose|output_subdir|job\.name|job\.chdir)=.*"
    r"|(?!.*(_target_|custom_search_space|\$\{|hydra[./].*hydra[./]))"
    r"hydra\.(launcher|sweeper)(\.[^@]+)?=.*"
    r"|hydra/(launcher|sweeper|sweeper/sampler)=\w+",
    re.DOTALL,
)
"""NAME=VALUE of the settings of Hydra that are allowed; GROUP=CHOICE of its groups."""


def check_of_hydra(name: str, value: Any, place: str = "") -> None:
    """Raise InputError for a setting or group of Hydra by which it could call functions.

    place: begins the message, where it stands in a file.
    """
    if OF_HYDRA.fullmatch(f"{name}={value}") is None:
        raise InputError(
            f"{place}{name}={value}: is not allowed, because Hydra could call functions; leave it"
            " out. Allowed are hydra.run, sweep, mode, verbose, output_subdir, job.name and"
            " job.chdir, plain values (without ${...}) of launcher and sweeper, and the choice of"
            " hydra/launcher, hydra/sweeper and hydra/sweeper/sampler"
        )


def check_config_dir(config_dir: str) -> None:
    """Raise InputError if the folder is missing, or a file could make Hydra call functions."""
    if not Path(config_dir).is_dir():
        raise InputError(
            f"--config-dir={config_dir}: no such folder; give one that has configuration files"
        )
    for folder, _, names in os.walk(config_dir, followlinks=True):
        for name in names:
            if name.endswith((".yaml", ".yml")):
                _check_file(Path(folder, name), os.path.relpath(folder, config_dir))


def _check_file(file: Path, group: str) -> None:
    """Raise InputError if a file cannot be read, or could make Hydra call functions."""
    content, config = _read_yaml(file)
    if group.startswith("hydra"):
        raise InputError(f"{file}: replaces configuration of Hydra itself; rename or remove it")
    if re.search(rb"@package.*hydra", content):
        raise InputError(f"{file}: its package is Hydra's own configuration; choose another")
    defaults = config.get("defaults")
    for entry in defaults if isinstance(defaults, list) else ():
        for choice, value in entry.items() if isinstance(entry, dict) else [(entry, "")]:
            if "hydra" in str(choice) or "${" in str(choice):
                name = re.sub(r"((override|optional) )*/?", "", str(choice), count=1)
                check_of_hydra(name, value, f"{file}: defaults: ")
    if "hydra" in config:
        for name, value in flatten({"hydra": config["hydra"]}).items():
            check_of_hydra(name, value, f"{file}: ")


def _read_yaml(file: Path) -> tuple[bytes, dict[Any, Any]]:
    """Return the content of a file, and its values if they have names.

    InputError if it is no YAML, or too large.
    """
    try:
        with open_regular(file) as opened:
            content: bytes = opened.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"larger than {MAX_BYTES:,} bytes; split it")
        config = yaml.safe_load(content)
        # Raises ValueError for a text that is no Unicode, and for a group within itself.
        json.dumps(config, default=str, ensure_ascii=False).encode()
    except (yaml.YAMLError, *UNREADABLE) as error:
        reason = "; ".join(line.strip() for line in str(error).splitlines())
        raise InputError(f"{file}: cannot be read as YAML: {reason}") from None
    return content, config if isinstance(config, dict) else {}
