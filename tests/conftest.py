"""Makes support.py importable from every test: pytest puts the folder of a conftest.py on the path."""

from hypothesis import settings

settings.register_profile("shared machine", deadline=None)  # an example can take long where other work has the cores
settings.load_profile("shared machine")
