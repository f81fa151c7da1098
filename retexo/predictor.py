"""`from retexo.predictor import load_run`: the notebook's `load_run`, under the name that it is documented by."""

from retexo.apps.notebook import load_run as load_run
