"""Makes support.py importable from every test: pytest puts the folder of a conftest.py on the path."""
