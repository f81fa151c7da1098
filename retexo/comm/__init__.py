"""Messages between workers: collectives over one primitive, their transports, the traffic they cause, the replay log."""
