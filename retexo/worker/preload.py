"""What the fork server imports for all workers.

They share its memory: their garbage collectors leave out what was there before the fork.
"""

import atexit
import gc
import os

from retexo.launch.quick_import import import_quickly

import_quickly("retexo.worker.train")
gc.freeze()
atexit.register(os._exit, 0)  # at the end of a run; unloading torch would take half a second
