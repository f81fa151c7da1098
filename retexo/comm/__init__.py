"""Messages between workers: collectives over one primitive, its transports, the traffic meter, the replay log."""
