"""What pyproject.toml cannot say: besides the packages that are found, conf/ is one, by the name of
retexo.conf.
"""

from setuptools import find_packages, setup

found = find_packages(include=["retexo*", "partitioning*"])
setup(packages=[*found, "retexo.conf"], package_dir={"retexo.conf": "conf"})
