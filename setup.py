"""What pyproject.toml cannot say: besides the packages that are found, conf/ is one, by the name of
retexo.conf, and so is each folder with data.
"""

from pathlib import Path

from setuptools import find_packages, setup

found = find_packages(include=["retexo*", "partitioning*"])
groups = sorted(folder.name for folder in Path("conf").iterdir() if folder.is_dir())
data = ["partitioning.datasets.assets", "retexo.conf", *(f"retexo.conf.{name}" for name in groups)]
setup(packages=[*found, *data], package_dir={"retexo.conf": "conf"})
