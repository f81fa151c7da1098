"""Start, connect, monitor and end the processes of a run on one or more machines.

A run is started in `start_workers.py`, by the app in `retexo/apps/`; `rendezvous.py` connects the
nodes before that.
"""
