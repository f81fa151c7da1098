"""What the fork server imports for all workers.

They share its memory: their garbage collectors leave out what was there before the fork.
"""

import gc

from retexo.launch.quick_import import import_quickly

import_quickly("retexo.worker.train")
gc.freeze()
