"""Start, connect, monitor and end the processes of a run on one or more machines."""
