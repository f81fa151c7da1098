"""Messages between workers: collectives, transports, the traffic meter and the replay log."""
